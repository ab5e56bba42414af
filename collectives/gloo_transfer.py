"""A Transfer over gloo, whose sockets carry messages as long as they are into whatever room there is for them."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
import torch.distributed as dist

Tensor = torch.Tensor


class GlooTransfer:
    """`tag` tells its messages from those of other transfers under way between the same two ranks."""

    def __init__(
        self,
        group: dist.ProcessGroup,
        tag: int,
        watched: Callable[[], AbstractContextManager[None]],
        count: Callable[[list[int]], None],
    ) -> None:
        """`watched` turns a lost peer into CollectiveError; `count` is told the bytes sent to each place."""
        self._group, self._tag, self._watched, self._count = group, tag, watched, count
        self._sent = [0] * group.size()
        self._coming: dict[int, dist.Work] = {}
        self._going: list[dist.Work] = []

    def receive(self, place: int, room: Tensor) -> None:
        with self._watched():
            self._coming[place] = self._group.recv([room], place, self._tag)

    def send(self, place: int, rows: Tensor) -> None:
        self._sent[place] += rows.nbytes
        with self._watched():
            self._going.append(self._group.send([rows], place, self._tag))

    def arrived(self, place: int) -> None:
        with self._watched():
            self._coming.pop(place).wait()

    def finish(self, kept_bytes: int = 0) -> None:
        """`kept_bytes` are what this rank handed to itself."""
        with self._watched():
            for work in (*self._coming.values(), *self._going):
                work.wait()
        self._sent[self._group.rank()] += kept_bytes
        self._count(self._sent)
