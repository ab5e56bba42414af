"""Ranks as threads of this process: a Group without sockets, for tests of what is built on groups."""

import threading
from collections import defaultdict
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
        self.mail: dict[tuple[int, int, str], list[Tensor]] = defaultdict(list)
        self.broken = False

    def put(self, key: tuple[int, int, str], message: Tensor) -> None:
        with self.arrival:
            self.mail[key].append(message)
            self.arrival.notify_all()

    def take(self, key: tuple[int, int, str]) -> Tensor:
        with self.arrival:
            there = self.arrival.wait_for(lambda: self.mail[key] or self.broken, timeout=60)
            if not there or not self.mail[key]:
                raise threading.BrokenBarrierError
            return self.mail[key].pop(0)

    def abort(self) -> None:
        self.barrier.abort()
        with self.arrival:
            self.broken = True
            self.arrival.notify_all()


class ThreadTransfer:
    """Messages go into rooms only when they are waited for, so that what is read too early is not there."""

    def __init__(self, world: World, rank: int, purpose: str, count: Callable[[list[int]], None]) -> None:
        self._world, self._rank, self._purpose, self._count = world, rank, purpose, count
        self._rooms: dict[int, Tensor] = {}
        self._sent = [0] * len(world.ranks)

    def receive(self, place: int, room: Tensor) -> None:
        assert place != self._rank
        assert place not in self._rooms
        assert room.is_contiguous()
        self._rooms[place] = room

    def send(self, place: int, rows: Tensor) -> None:
        assert place != self._rank
        assert not self._sent[place]
        assert rows.is_contiguous()
        assert rows.nbytes
        self._sent[place] = rows.nbytes
        self._world.put((self._rank, place, self._purpose), rows.clone().flatten().view(torch.uint8))

    def arrived(self, place: int) -> None:
        message = self._world.take((place, self._rank, self._purpose))
        self._rooms.pop(place).flatten().view(torch.uint8)[: len(message)].copy_(message)

    def finish(self) -> None:
        for place in list(self._rooms):
            self.arrived(place)
        self._count(self._sent)


class ThreadGroup:
    """`messages` as of gloo; without, what NCCL can do."""

    def __init__(self, world: World, rank: int, ledger: Ledger, *, messages: bool = True) -> None:
        self.rank, self.ranks, self.ledger, self._world = rank, world.ranks, ledger, world
        self.messages = messages

    @property
    def size(self) -> int:
        return len(self.ranks)

    def open(self, purpose: str) -> ThreadTransfer:
        assert self.messages
        return ThreadTransfer(self._world, self.rank, purpose, partial(self._count, purpose))

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
