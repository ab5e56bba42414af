"""`smoe trace`: look into recorded traces."""

from pathlib import Path
from typing import Annotated

import typer

from smoe.cli import options

NAME = "trace"
EXAMPLE = options.example("smoe trace info routes.safetensors")

app = typer.Typer(help="Look into recorded traces.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _group() -> None:
    """Look into recorded traces."""


@app.command("info", epilog=EXAMPLE)
def info_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A route trace, as `generate --record-routes` writes.")],
    json: Annotated[bool, typer.Option("--json", help="Print the summary as a JSON object.")] = False,
) -> None:
    """Check a route trace and sum it up: sizes, and load and reuse of experts a layer."""
    from smoe.core.route_summary import summarize
    from smoe.core.route_trace import read_route_trace

    summary = summarize(read_route_trace(file))
    if json:
        import json as json_module

        print(json_module.dumps(summary, indent=1))
        return
    from rich.console import Console
    from rich.table import Table

    layers = summary.pop("layers")
    totals = Table(show_header=False, title=str(file), title_justify="left")
    for name, value in summary.items():
        totals.add_row(name.replace("_", " "), f"{value:,}" if type(value) is int else str(value))
    table = Table(show_footer=False)
    for name in ("layer", "experts used", "load max / mean", "repeat share"):
        table.add_column(name, justify="right")
    for layer in layers:
        figures = (f"{layer['load_max_over_mean']:.2f}", f"{layer['repeat_share']:.1%}")
        table.add_row(str(layer["layer"]), str(layer["experts_used"]), *figures)
    console = Console()
    console.print(totals)
    console.print(table)
