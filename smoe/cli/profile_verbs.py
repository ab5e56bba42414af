"""`smoe profile` and what is below it: without another verb it records routes."""

from typing import Any

import typer
from typer.core import TyperGroup

from smoe.cli import profile, profile_depth

NAME = "profile"
_ROUTES = "routes"


class _RoutesByDefault(TyperGroup):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] != "--help":
            args = [_ROUTES, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_RoutesByDefault,
    help="Measure a model: the routes of texts (routes, also without that word), or how far to draft (depth).",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.command(_ROUTES, epilog=profile.EXAMPLE)(profile.command)
app.command(profile_depth.NAME, epilog=profile_depth.EXAMPLE)(profile_depth.command)
