"""How an actor method says that it failed: as plain data, so that no Ray stack wraps the cause."""

import logging
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from smoe.core.errors import SmoeError, StartupError

T = TypeVar("T")
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Failed:
    """`error` is what the caller raises; `details` is the traceback of an unexpected exception, for logs."""

    error: SmoeError
    details: str = ""


class Gone(Failed):
    """The process that was asked is dead, or does not answer."""

    __slots__ = ()


def attempt(call: Callable[[], T]) -> T | Failed:
    """The call's value, or its exception as data. An exception that is not a SmoeError becomes a StartupError
    of one line, and its traceback goes to this process's log."""
    try:
        return call()
    except SmoeError as error:
        return Failed(error)
    except Exception as error:
        log.exception("unexpected failure")
        return Failed(StartupError(one_line(error)), traceback.format_exc())


def unwrap(outcome: T | Failed) -> T:
    """The value, or the error raised."""
    if isinstance(outcome, Failed):
        raise outcome.error
    return outcome


def one_line(error: BaseException) -> str:
    """`Type: first line`, which is what a user can act on."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
