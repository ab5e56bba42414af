"""The `smoe` command: verbs, and how errors are said. Nothing heavy is imported before a verb runs."""

import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import typer

from smoe.cli import (
    bench,
    chat,
    convert,
    doctor,
    generate,
    placement,
    plan,
    profile_verbs,
    regroup,
    serve,
    simulate_verbs,
    top,
    trace,
)
from smoe.core.errors import SmoeError

USAGE_ERROR, INTERRUPTED = 2, 130

app = typer.Typer(
    name="smoe",
    help="Mixture-of-Experts inference where weights or tokens have to travel.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
for verb in (generate, chat, serve, top, plan, regroup, doctor):
    app.command(verb.NAME, epilog=verb.EXAMPLE)(verb.command)
for group in (bench, convert, placement, profile_verbs, simulate_verbs, trace):
    app.add_typer(group.app, name=group.NAME)

# The argument parser's errors; typer has them from click, or from a copy of its own.
_ParserError: Any = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs one verb and exits: 2 with one line for what the user can mend; our own faults keep their traceback."""
    for name in ("SIGTERM", "SIGHUP"):
        signal.signal(getattr(signal, name), _leave)
    try:
        code = run(arguments)
    except Ended as ended:
        # Everything of ours is closed by now. The interpreter's own end would run the exits of libraries whose
        # processes the same signal has taken away, and they crash.
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        os._exit(128 + ended.number)
    sys.exit(code)


def run(arguments: Sequence[str] | None = None) -> int:
    """The exit code. Raises what no user can mend."""
    try:
        code = app(args=None if arguments is None else list(arguments), standalone_mode=False)
    except SmoeError as error:
        return _refuse(str(error), getattr(error, "details", ""))
    except _ParserError as error:
        return _refuse(_parser_line(error))
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has left; what Python still holds for it must not be flushed at exit.
        sys.stdout = None
        return 1
    return code if isinstance(code, int) else 0


def _refuse(message: str, details: str = "") -> int:
    line = " ".join(message.split())
    print(f"error: {line}", file=sys.stderr)
    if details:
        print(details, file=sys.stderr)
    return USAGE_ERROR


def _parser_line(error: Any) -> str:
    parameter = getattr(error, "param", None)
    if parameter is None or type(error).__name__ != "BadParameter":
        return str(error.format_message())
    return f"{parameter.opts[0]}: {error.message}"


class Ended(BaseException):
    """A signal asks the process to end: through `finally` blocks, so that actors and their files go too."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def _leave(number: int, _: object) -> NoReturn:
    raise Ended(number)
