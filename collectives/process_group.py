"""ProcessGroup: torch.distributed (gloo on CPU, NCCL on CUDA) as a Group."""

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial

import torch
import torch.distributed as dist

from smoe.collectives.gloo_transfer import GlooTransfer
from smoe.collectives.ledger import PURPOSES, Ledger
from smoe.core.errors import CollectiveError

Tensor = torch.Tensor


class ProcessGroup:
    """Over a torch process group whose time limit is its own.

    On gloo, all-to-alls are messages of our own: its collective asks for what comes only after it has sent what goes,
    so that the asking waits behind the payload and a link is busy one way at a time (half of it between two ranks).
    """

    def __init__(self, group: dist.ProcessGroup, ledger: Ledger) -> None:
        self.rank = dist.get_rank(group)
        self.ranks = tuple(dist.get_process_group_ranks(group))
        self.messages = dist.get_backend(group) == "gloo"
        self.ledger, self._group = ledger, group

    @property
    def size(self) -> int:
        return len(self.ranks)

    def open(self, purpose: str) -> GlooTransfer:
        tag = PURPOSES.index(purpose) if purpose in PURPOSES else len(PURPOSES)
        return GlooTransfer(self._group, tag, partial(self._watched, purpose), partial(self._count, purpose))

    def all_to_all(self, rows: Tensor, send: Sequence[int], receive: Sequence[int], purpose: str) -> Tensor:
        received, rows = rows.new_empty((sum(receive), *rows.shape[1:])), rows.contiguous()
        if self.messages:
            self._exchange(torch.split(rows, list(send)), torch.split(received, list(receive)), purpose)
            return received
        with self._watched(purpose):
            dist.all_to_all_single(received, rows, list(receive), list(send), group=self._group)
        row_bytes = rows.nbytes // max(1, len(rows))
        self._count(purpose, [count * row_bytes for count in send])
        return received

    def all_gather(self, rows: Tensor, purpose: str, counts: Sequence[int] | None = None) -> Tensor:
        counts = [len(rows)] * self.size if counts is None else list(counts)
        gathered, rows = rows.new_empty((sum(counts), *rows.shape[1:])), rows.contiguous()
        if self.messages:
            self._exchange([rows] * self.size, torch.split(gathered, counts), purpose)
            return gathered
        if len(set(counts)) > 1:
            # An all-to-all takes rows of none from a rank; whether an uneven all-gather does is the backend's secret.
            return self.all_to_all(rows.repeat(self.size, 1), [len(rows)] * self.size, counts, purpose)
        with self._watched(purpose):
            dist.all_gather_into_tensor(gathered, rows, group=self._group)
        self._count(purpose, [rows.nbytes] * self.size)
        return gathered

    def all_reduce(self, values: Tensor, purpose: str) -> Tensor:
        with self._watched(purpose):
            dist.all_reduce(values, group=self._group)
        # As a reduce-scatter and an all-gather would send it: two shares of the values to every other rank.
        share = 2 * values.nbytes // self.size
        self._count(purpose, [0 if place == self.rank else share for place in range(self.size)])
        return values

    def _exchange(self, parts: Sequence[Tensor], rooms: Sequence[Tensor], purpose: str) -> None:
        """parts[g] to each other place, and into rooms[g] what comes from it: as much as there is room for."""
        transfer = self.open(purpose)
        nexts = [(self.rank + step) % self.size for step in range(1, self.size)]
        for place in nexts:
            if rooms[place].nbytes:
                transfer.receive(place, rooms[place])
        for place in nexts:
            if parts[place].nbytes:
                transfer.send(place, parts[place])
        rooms[self.rank].copy_(parts[self.rank])
        transfer.finish(kept_bytes=parts[self.rank].nbytes)

    def _count(self, purpose: str, sent: Sequence[int]) -> None:
        self.ledger.count(purpose, dict(zip(self.ranks, sent, strict=True)))

    @contextlib.contextmanager
    def _watched(self, purpose: str) -> Iterator[None]:
        try:
            with self.ledger.timed():
                yield
        except RuntimeError as error:  # torch has no narrower class for a peer that is gone or late
            raise CollectiveError(f"{purpose} over ranks {list(self.ranks)}: {str(error).splitlines()[0]}") from error
