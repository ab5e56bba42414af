"""What ranks answer."""

from dataclasses import dataclass
from typing import Any

from smoe.bench.comm.timed import Exchange
from smoe.collectives.ledger import Traffic
from smoe.core.placement import Array


@dataclass(frozen=True, slots=True)
class Answer:
    """`error` is a traceback: ranks are our own code, and a benchmark that fails should say where."""

    value: Any = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """One pass, counted: the experts of this rank's rows by layer, [R, K] each, and all that it sent."""

    ids: dict[int, Array]
    traffic: dict[str, Traffic]
    next_tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass, timed."""

    start_s: float
    end_s: float
    exchanges: tuple[Exchange, ...]
