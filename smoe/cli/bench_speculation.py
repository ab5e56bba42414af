"""`smoe bench speculation`."""

from pathlib import Path
from typing import Annotated

import typer

from smoe.cli import options

EXAMPLE = options.example("smoe bench speculation --quick")


def command(
    quick: Annotated[bool, typer.Option("--quick", help="One size of memory and fewer tokens: minutes.")] = False,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where result and picture go.")] = Path(
        "benchmarks/results"
    ),
    cache: Annotated[
        Path | None, typer.Option("--cache", metavar="DIR", help="Keeps the 4.9 GB model; default ~/.cache/smoe.")
    ] = None,
) -> None:
    """Drafts against demand paging of experts at equal memory: time a token, tokens kept, experts foretold."""
    from smoe.bench.result import print_figures
    from smoe.bench.speculation.run import run
    from smoe.core.cache_root import cache_root

    result = run(quick=quick, cache=cache or cache_root(), out=out)
    print_figures(result.summary, "speculation")
    print(result.write(out))
