"""`smoe bench comm`."""

from pathlib import Path
from typing import Annotated

import typer

from smoe.cli import options

EXAMPLE = options.example("smoe bench comm --quick")


def command(
    quick: Annotated[bool, typer.Option("--quick", help="One link and fewer steps: two minutes.")] = False,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where result and pictures go.")] = Path(
        "benchmarks/results"
    ),
    cache: Annotated[
        Path | None, typer.Option("--cache", metavar="DIR", help="Keeps the 0.5 GB model; default ~/.cache/smoe.")
    ] = None,
    skip_actors: Annotated[bool, typer.Option("--skip-actors", help="Leave steps through actors out.")] = False,
) -> None:
    """Schedules and placements on four hosts behind shaped links, as network namespaces: speed, bytes. Needs root."""
    from smoe.bench.comm.run import run
    from smoe.bench.result import print_figures
    from smoe.core.cache_root import cache_root
    from smoe.llm import open_client

    result = run(
        None if skip_actors else lambda config, distributed: open_client(config, distributed=distributed),
        quick=quick,
        cache=cache or cache_root(),
        out=out,
    )
    print_figures(result.summary, "comm")
    print(result.write(out))
