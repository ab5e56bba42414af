"""Ranks as threads of this process: a Group without sockets, for tests of what is built on groups."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
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


class ThreadGroup:
    def __init__(self, world: World, rank: int, ledger: Ledger) -> None:
        self.rank, self.ranks, self.ledger, self._world = rank, world.ranks, ledger, world

    @property
    def size(self) -> int:
        return len(self.ranks)

    def all_to_all(self, rows: Tensor, send: Sequence[int], receive: Sequence[int], purpose: str) -> Tensor:
        assert len(send) == len(receive) == self.size
        assert sum(send) == len(rows)
        posted = self._post(rows.clone().split(list(send)))
        parts = [chunks[self.rank] for chunks in posted]
        assert [len(part) for part in parts] == list(receive)
        self._count(purpose, [count * (rows.nbytes // max(1, len(rows))) for count in send])
        return torch.cat(parts)

    def all_gather(self, rows: Tensor, purpose: str) -> Tensor:
        posted = self._post(rows.clone())
        assert len({len(part) for part in posted}) == 1
        self._count(purpose, [rows.nbytes] * self.size)
        return torch.cat(posted)

    def all_reduce(self, values: Tensor, purpose: str) -> Tensor:
        parts = self._post(values.clone())
        share = 2 * values.nbytes // self.size
        self._count(purpose, [0 if place == self.rank else share for place in range(self.size)])
        return torch.stack(list(parts)).sum(0)

    def abort(self) -> None:
        """The others' exchanges fail from now on."""
        self._world.barrier.abort()

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


def run_ranks(size: int, body: Callable[[ThreadGroup], Answer], *, hosts: Sequence[str] | None = None) -> list[Answer]:
    """body(group) on every rank at once; the answers by rank. The first exception of any rank is raised."""
    world = World(range(size))
    names = ["here"] * size if hosts is None else list(hosts)
    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(_guarded, body, ThreadGroup(world, rank, Ledger(rank, names))) for rank in range(size)]
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
