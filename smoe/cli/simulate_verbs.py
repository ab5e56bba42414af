"""`smoe simulate` and what is below it: without another verb it replays a route trace."""

import typer

from smoe.cli import simulate, simulate_serving
from smoe.cli.default_verb import by_default

NAME = "simulate"

app = typer.Typer(
    cls=by_default(simulate.NAME, without_arguments=True),
    help="In virtual time: which experts are resident (experts, also without that word), or whole requests (serving).",
    rich_markup_mode=None,
)
app.command(simulate.NAME, epilog=simulate.EXAMPLE)(simulate.command)
app.command(simulate_serving.NAME, epilog=simulate_serving.EXAMPLE)(simulate_serving.command)
