"""ProcessGroup: torch.distributed (gloo on CPU, NCCL on CUDA) as a Group."""

import contextlib
from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist

from smoe.collectives.ledger import Ledger
from smoe.core.errors import CollectiveError

Tensor = torch.Tensor


class ProcessGroup:
    """Over a torch process group whose time limit is its own."""

    def __init__(self, group: dist.ProcessGroup, ledger: Ledger) -> None:
        self.rank = dist.get_rank(group)
        self.ranks = tuple(dist.get_process_group_ranks(group))
        self.ledger, self._group = ledger, group

    @property
    def size(self) -> int:
        return len(self.ranks)

    def all_to_all(self, rows: Tensor, send: Sequence[int], receive: Sequence[int], purpose: str) -> Tensor:
        received = rows.new_empty((sum(receive), *rows.shape[1:]))
        with self._watched(purpose):
            dist.all_to_all_single(received, rows.contiguous(), list(receive), list(send), group=self._group)
        row_bytes = rows.nbytes // max(1, len(rows))
        self._count(purpose, [count * row_bytes for count in send])
        return received

    def all_gather(self, rows: Tensor, purpose: str) -> Tensor:
        gathered = rows.new_empty((self.size * len(rows), *rows.shape[1:]))
        with self._watched(purpose):
            dist.all_gather_into_tensor(gathered, rows.contiguous(), group=self._group)
        self._count(purpose, [rows.nbytes] * self.size)
        return gathered

    def all_reduce(self, values: Tensor, purpose: str) -> Tensor:
        with self._watched(purpose):
            dist.all_reduce(values, group=self._group)
        # As a reduce-scatter and an all-gather would send it: two shares of the values to every other rank.
        share = 2 * values.nbytes // self.size
        self._count(purpose, [0 if place == self.rank else share for place in range(self.size)])
        return values

    def _count(self, purpose: str, sent: Sequence[int]) -> None:
        self.ledger.count(purpose, dict(zip(self.ranks, sent, strict=True)))

    @contextlib.contextmanager
    def _watched(self, purpose: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # torch has no narrower class for a peer that is gone or late
            raise CollectiveError(f"{purpose} over ranks {list(self.ranks)}: {str(error).splitlines()[0]}") from error
