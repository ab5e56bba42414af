"""A group whose every exchange is timed, and what the times of all ranks say together."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from smoe.collectives.group import Group, Transfer

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Exchange:
    """Of one rank: bytes to each place but its own, when it began and ended, on the machine's one monotonic clock."""

    purpose: str
    out_bytes: tuple[int, ...]
    start_s: float
    end_s: float


class TimedGroup:
    """Keeps `exchanges` in the order in which they ended."""

    def __init__(self, group: Group) -> None:
        self._group, self.exchanges = group, list[Exchange]()
        self.rank, self.ranks, self.ledger, self.messages = group.rank, group.ranks, group.ledger, group.messages

    @property
    def size(self) -> int:
        return self._group.size

    def open(self, purpose: str) -> Transfer:
        return _TimedTransfer(self, self._group.open(purpose), purpose)

    def all_to_all(self, rows: Tensor, send: Sequence[int], receive: Sequence[int], purpose: str) -> Tensor:
        start_s = time.monotonic()
        received = self._group.all_to_all(rows, send, receive, purpose)
        row_bytes = rows.nbytes // max(1, len(rows))
        self.keep(purpose, [row_bytes * count for count in send], start_s)
        return received

    def all_gather(self, rows: Tensor, purpose: str, counts: Sequence[int] | None = None) -> Tensor:
        start_s = time.monotonic()
        gathered = self._group.all_gather(rows, purpose, counts)
        self.keep(purpose, [rows.nbytes] * self.size, start_s)
        return gathered

    def all_reduce(self, values: Tensor, purpose: str) -> Tensor:
        start_s = time.monotonic()
        summed = self._group.all_reduce(values, purpose)
        self.keep(purpose, [2 * values.nbytes // self.size] * self.size, start_s)
        return summed

    def keep(self, purpose: str, sent: Sequence[int], start_s: float) -> None:
        out = tuple(0 if place == self.rank else nbytes for place, nbytes in enumerate(sent))
        self.exchanges.append(Exchange(purpose, out, start_s, time.monotonic()))


class _TimedTransfer:
    """Its exchange lasts from the first message that is sent to the end of all."""

    def __init__(self, group: TimedGroup, transfer: Transfer, purpose: str) -> None:
        self._group, self._transfer, self._purpose = group, transfer, purpose
        self._sent, self._start_s = [0] * group.size, float("nan")

    def receive(self, place: int, room: Tensor) -> None:
        self._transfer.receive(place, room)

    def send(self, place: int, rows: Tensor) -> None:
        if not any(self._sent):
            self._start_s = time.monotonic()
        self._sent[place] = rows.nbytes
        self._transfer.send(place, rows)

    def arrived(self, place: int) -> None:
        self._transfer.arrived(place)

    def finish(self) -> None:
        start_s = self._start_s if any(self._sent) else time.monotonic()
        self._transfer.finish()
        self._group.keep(self._purpose, self._sent, start_s)


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
        out = [sum(e.out_bytes) for e in each]
        into = [sum(column) for column in zip(*(e.out_bytes for e in each), strict=True)]
        found.append(Moved(each[0].purpose, ended_s - began_s, max(*out, *into), began_s, ended_s))
    return found


def seconds_of(moved: Sequence[Moved]) -> float:
    """In which at least one of them was under way."""
    total_s, until_s = 0.0, float("-inf")
    for each in sorted(moved, key=lambda one: one.began_s):
        total_s += max(0.0, each.ended_s - max(each.began_s, until_s))
        until_s = max(until_s, each.ended_s)
    return total_s
