"""`smoe bench serve`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from smoe.cli import options

EXAMPLE = options.example("smoe bench serve --quick")


def command(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer streams, requests and methods: minutes.")] = False,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the result file and pictures go.")] = Path(
        "benchmarks/results"
    ),
    cache: Annotated[
        Path | None, typer.Option("--cache", metavar="DIR", help="Keeps the 4.9 GB model; default ~/.cache/smoe.")
    ] = None,
    skip_inflated: Annotated[bool, typer.Option("--skip-inflated", help="Leave the 4.9 GB model out.")] = False,
) -> None:
    """Serving beside `transformers serve`, its overhead, rates of an offloaded model within an SLO, prediction."""
    from smoe.bench.result import print_figures
    from smoe.bench.serve.run import run
    from smoe.core.cache_root import cache_root

    result = run(
        quick=quick,
        cache=None if skip_inflated else cache or cache_root(),
        out=out,
        note=lambda text: print(text, file=sys.stderr, flush=True),
    )
    print_figures(result.summary, "serve")
    print(result.write(out))
