"""Ranks as threads of this process: a Group without sockets, for tests of what is built on groups."""

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import torch

from smoe.collectives.ledger import Ledger

Tensor = torch.Tensor
Answer = TypeVar("Answer")


class World:
    """What the ranks of one group share."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self.ranks = tuple(ranks)
        self.barrier = threading.Barrier(len(ranks), timeout=60)
        self.posted: list[Any] = [None] * len(ranks)
        self.arrival = threading.Condition()
        self.mail: dict[tuple[int, int], deque[tuple[str, Tensor]]] = defaultdict(deque)
        self.broken = False

    def put(self, source: int, target: int, tag: str, message: Tensor) -> None:
        with self.arrival:
            self.mail[source, target].append((tag, message))
            self.arrival.notify_all()

    def abort(self) -> None:
        self.barrier.abort()
        with self.arrival:
            self.broken = True
            self.arrival.notify_all()


class Inbox:
    """What one rank has asked for. As on a connection: messages of one rank come one behind the other, and one that
    nobody has asked for yet holds up those behind it; they go into their rooms only while something is waited for."""

    def __init__(self, world: World, rank: int) -> None:
        self._world, self._rank = world, rank
        self._rooms: dict[tuple[int, str], deque[Tensor]] = defaultdict(deque)
        self._asked: dict[tuple[int, str], int] = defaultdict(int)
        self._came: dict[tuple[int, str], int] = defaultdict(int)

    def ask(self, source: int, tag: str, room: Tensor) -> int:
        self._rooms[source, tag].append(room)
        self._asked[source, tag] += 1
        return self._asked[source, tag]

    def wait(self, source: int, tag: str, number: int) -> None:
        with self._world.arrival:
            if not self._world.arrival.wait_for(lambda: self._has(source, tag, number) or self._world.broken, 60):
                raise AssertionError(f"rank {self._rank} waits for {tag} {number} of {source} for ever")
        if self._came[source, tag] < number:
            raise threading.BrokenBarrierError

    def _has(self, source: int, tag: str, number: int) -> bool:
        for place in range(len(self._world.ranks)):
            waiting = self._world.mail[place, self._rank]
            while waiting and self._rooms[place, waiting[0][0]]:
                name, message = waiting.popleft()
                room = self._rooms[place, name].popleft()
                room.flatten().view(torch.uint8)[: len(message)].copy_(message)
                self._came[place, name] += 1
        return self._came[source, tag] >= number


class ThreadTransfer:
    def __init__(
        self, group: "ThreadGroup", inbox: Inbox, world: World, purpose: str, count: Callable[[list[int]], None]
    ) -> None:
        self._group, self._inbox, self._world, self._purpose, self._count = group, inbox, world, purpose, count
        self._rank, self._numbers = group.rank, dict[int, int]()
        self._sent = [0] * len(world.ranks)

    def receive(self, place: int, room: Tensor) -> None:
        assert place != self._rank
        assert place not in self._numbers
        assert room.is_contiguous()
        self._numbers[place] = self._inbox.ask(place, self._purpose, room)

    def send(self, place: int, rows: Tensor) -> None:
        assert place != self._rank
        assert not self._sent[place]
        assert rows.is_contiguous()
        assert rows.nbytes
        self._sent[place] = rows.nbytes
        self._group.posted_messages += 1
        self._world.put(self._rank, place, self._purpose, rows.clone().flatten().view(torch.uint8))

    def arrived(self, place: int) -> None:
        self._inbox.wait(place, self._purpose, self._numbers.pop(place))

    def finish(self) -> None:
        for place in list(self._numbers):
            self.arrived(place)
        self._count(self._sent)


class ThreadGroup:
    """`messages` as of gloo; without, what NCCL can do."""

    def __init__(self, world: World, rank: int, ledger: Ledger, *, messages: bool = True) -> None:
        self.rank, self.ranks, self.ledger, self._world = rank, world.ranks, ledger, world
        self.messages, self._inbox = messages, Inbox(world, rank)
        self.posted_messages = 0

    @property
    def size(self) -> int:
        return len(self.ranks)

    def open(self, purpose: str) -> ThreadTransfer:
        assert self.messages
        return ThreadTransfer(self, self._inbox, self._world, purpose, partial(self._count, purpose))

    def all_to_all(self, rows: Tensor, send: Sequence[int], receive: Sequence[int], purpose: str) -> Tensor:
        assert len(send) == len(receive) == self.size
        assert sum(send) == len(rows)
        posted = self._post(rows.clone().split(list(send)))
        parts = [chunks[self.rank] for chunks in posted]
        assert [len(part) for part in parts] == list(receive)
        self._count(purpose, [count * (rows.nbytes // max(1, len(rows))) for count in send])
        return torch.cat(parts)

    def all_gather(self, rows: Tensor, purpose: str, counts: Sequence[int] | None = None) -> Tensor:
        posted = self._post(rows.clone())
        assert [len(part) for part in posted] == list(counts or [len(rows)] * self.size)
        self._count(purpose, [rows.nbytes] * self.size)
        return torch.cat(posted)

    def all_reduce(self, values: Tensor, purpose: str) -> Tensor:
        parts = self._post(values.clone())
        share = 2 * values.nbytes // self.size
        self._count(purpose, [0 if place == self.rank else share for place in range(self.size)])
        return torch.stack(list(parts)).sum(0)

    def abort(self) -> None:
        """The others' exchanges fail from now on."""
        self._world.abort()

    def _post(self, value: Any) -> list[Any]:
        world = self._world
        world.posted[self.rank] = value
        world.barrier.wait()
        seen = list(world.posted)
        world.barrier.wait()
        return seen

    def _count(self, purpose: str, sent: Sequence[int]) -> None:
        self.ledger.count(purpose, dict(zip(self.ranks, sent, strict=True)))


def run_groups(groups: int, size: int, body: Callable[[ThreadGroup, ThreadGroup], Answer]) -> list[Answer]:
    """body(all, own) on every rank at once, where `own` are the `size` ranks of its group; the answers by rank."""
    cut = [World(range(first, first + size)) for first in range(0, groups * size, size)]

    def rank_body(everyone: ThreadGroup) -> Answer:
        own = ThreadGroup(cut[everyone.rank // size], everyone.rank % size, everyone.ledger)
        try:
            return body(everyone, own)
        except BaseException:
            own.abort()
            raise

    return run_ranks(groups * size, rank_body)


def run_ranks(
    size: int,
    body: Callable[[ThreadGroup], Answer],
    *,
    hosts: Sequence[str] | None = None,
    messages: bool = True,
) -> list[Answer]:
    """body(group) on every rank at once; the answers by rank. The first exception of any rank is raised."""
    world = World(range(size))
    names = ["here"] * size if hosts is None else list(hosts)
    groups = [ThreadGroup(world, rank, Ledger(rank, names), messages=messages) for rank in range(size)]
    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(_guarded, body, group) for group in groups]
        errors = [error for future in futures if (error := future.exception()) is not None]
    real = [error for error in errors if not isinstance(error, threading.BrokenBarrierError)]
    if errors:
        raise (real or errors)[0]
    return [future.result() for future in futures]


def _guarded(body: Callable[[ThreadGroup], Answer], group: ThreadGroup) -> Answer:
    try:
        return body(group)
    except BaseException:
        group.abort()
        raise
