"""`smoe profile` and what is below it: without another verb it records routes."""

import typer

from smoe.cli import profile, profile_depth, profile_steps
from smoe.cli.default_verb import by_default

NAME = "profile"
_ROUTES = "routes"

app = typer.Typer(
    cls=by_default(_ROUTES),
    help="Measure a model: the routes of texts (routes, also without that word), how far to draft (depth), what steps "
    "take (steps).",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.command(_ROUTES, epilog=profile.EXAMPLE)(profile.command)
app.command(profile_depth.NAME, epilog=profile_depth.EXAMPLE)(profile_depth.command)
app.command(profile_steps.NAME, epilog=profile_steps.EXAMPLE)(profile_steps.command)
