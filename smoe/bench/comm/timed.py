"""A group whose every exchange is timed, and what the times of all ranks say together."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from smoe.collectives.group import Group

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Exchange:
    """Of one rank: bytes to and from others, and when it began and ended, on the machine's one monotonic clock."""

    purpose: str
    out_bytes: int
    in_bytes: int
    start_s: float
    end_s: float


class TimedGroup:
    """Keeps `exchanges` in the order in which they ended."""

    def __init__(self, group: Group) -> None:
        self._group, self.exchanges = group, list[Exchange]()
        self.rank, self.ranks, self.ledger = group.rank, group.ranks, group.ledger

    @property
    def size(self) -> int:
        return self._group.size

    def all_to_all(self, rows: Tensor, send: Sequence[int], receive: Sequence[int], purpose: str) -> Tensor:
        start_s = time.monotonic()
        received = self._group.all_to_all(rows, send, receive, purpose)
        row_bytes = rows.nbytes // max(1, len(rows)) if len(rows) else received.nbytes // max(1, len(received))
        out, into = (row_bytes * (sum(counts) - counts[self.rank]) for counts in (send, receive))
        self.exchanges.append(Exchange(purpose, out, into, start_s, time.monotonic()))
        return received

    def all_gather(self, rows: Tensor, purpose: str) -> Tensor:
        start_s = time.monotonic()
        gathered = self._group.all_gather(rows, purpose)
        others = gathered.nbytes - rows.nbytes
        self.exchanges.append(Exchange(purpose, others, others, start_s, time.monotonic()))
        return gathered

    def all_reduce(self, values: Tensor, purpose: str) -> Tensor:
        start_s = time.monotonic()
        summed = self._group.all_reduce(values, purpose)
        share = 2 * values.nbytes * (self.size - 1) // self.size
        self.exchanges.append(Exchange(purpose, share, share, start_s, time.monotonic()))
        return summed


@dataclass(frozen=True, slots=True)
class Moved:
    """One exchange as all ranks saw it. `seconds` are from when the last of them came to when the last of them left,
    so that waiting for a slower rank's arithmetic is not in it; `busiest_bytes` went through the busiest link."""

    purpose: str
    seconds: float
    busiest_bytes: int
    began_s: float
    ended_s: float


def together(by_rank: Sequence[Sequence[Exchange]]) -> list[Moved]:
    """Every rank has the same exchanges in the same order."""
    found = []
    for each in zip(*by_rank, strict=True):
        assert len({exchange.purpose for exchange in each}) == 1, "ranks call alike"
        began_s, ended_s = max(e.start_s for e in each), max(e.end_s for e in each)
        busiest = max(max(e.out_bytes, e.in_bytes) for e in each)
        found.append(Moved(each[0].purpose, ended_s - began_s, busiest, began_s, ended_s))
    return found
