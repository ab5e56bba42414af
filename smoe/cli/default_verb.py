"""Groups of verbs of which one is meant where none is named."""

from typing import Any

from typer.core import TyperGroup


def by_default(verb: str, *, without_arguments: bool = False) -> type[TyperGroup]:
    """A class for `typer.Typer(cls=...)`. `without_arguments` says whether it is meant by the group's name alone."""

    class DefaultGroup(TyperGroup):
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            named = bool(args) and (args[0] in self.commands or args[0] == "--help")
            if not named and (args or without_arguments):
                args = [verb, *args]
            return super().parse_args(ctx, args)

    return DefaultGroup
