"""`smoe bench regroup`."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from smoe.cli import options

EXAMPLE = options.example("smoe bench regroup --quick")


def command(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer layers and settings: two minutes.")] = False,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where result and pictures go.")] = Path(
        "benchmarks/results"
    ),
    data: Annotated[Path, typer.Option("--data", metavar="DIR", help="Where the routes are.")] = Path(
        "benchmarks/data"
    ),
    parts: Annotated[
        str | None, typer.Option("--parts", metavar="A,B", help="Of gpt-oss, deepseek, builtin, small, scale.")
    ] = None,
    in_process: Annotated[bool, typer.Option("--in-process", help="On one core, without Ray.")] = False,
) -> None:
    """Experts grouped by device on routes of real models: locality on held-out text, balance, rows moved, scale."""
    from smoe.bench.regroup.run import PARTS, run
    from smoe.bench.result import print_figures

    chosen = PARTS if parts is None else tuple(part.strip() for part in parts.split(","))
    if in_process:
        result = run(quick=quick, out=out, data=data, parts=chosen)
    else:
        from smoe.actors.launch import open_ray
        from smoe.actors.sweep import fan_out as over_cores

        jobs = os.cpu_count() or 1

        def fan_out(function: Any, items: Any, common: Any) -> Any:
            return over_cores(function, items, common, jobs=jobs)

        # Held open, or every part of the work would start a Ray of its own.
        session = open_ray(jobs)
        try:
            result = run(quick=quick, out=out, data=data, parts=chosen, fan_out=fan_out)
        finally:
            session.close()
    print_figures(result.summary, "regroup")
    print(result.write(out))
