"""Tensors of any size between all ranks, a bounded number of bytes at a time."""

from collections.abc import Iterable, Sequence

import torch

from smoe.collectives.group import Group

Tensor = torch.Tensor

MAX_BYTES = 64 << 20


class ByteStream:
    """Contiguous tensors, one behind the other, as bytes."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        flat = [tensor.view(-1).view(torch.uint8) for tensor in tensors]
        self._left = flat[::-1]  # the next one last

    def take(self, count: int) -> list[Tensor]:
        """Views of the next `count` bytes, or of what is left."""
        taken: list[Tensor] = []
        while count and self._left:
            piece = self._left.pop()
            if len(piece) > count:
                self._left.append(piece[count:])
            taken.append(piece[:count])
            count -= len(taken[-1])
        return taken


def exchange_streams(
    group: Group,
    outgoing: Sequence[Iterable[Tensor]],
    incoming: Sequence[Iterable[Tensor]],
    purpose: str,
    *,
    longest_bytes: int,
    max_bytes: int = MAX_BYTES,
) -> None:
    """Fills the tensors incoming[g] with those that place g has in outgoing[rank]: as many bytes, in their order.

    In rounds in which no rank sends or gets more than `max_bytes` (or one byte from each): its buffers are at most
    twice that. `longest_bytes`, of the longest stream between any two ranks, is the same on all of them: so all take
    part in as many rounds. Collective.
    """
    sources, targets = ([ByteStream(tensors) for tensors in side] for side in (outgoing, incoming))
    share = max(1, max_bytes // group.size)
    for _ in range(-(-longest_bytes // share)):
        leaving = [stream.take(share) for stream in sources]
        arriving = [stream.take(share) for stream in targets]
        # An empty first piece, as there may be none.
        packed = torch.cat([torch.empty(0, dtype=torch.uint8), *(piece for pieces in leaving for piece in pieces)])
        arrived = group.all_to_all(packed, _sizes(leaving), _sizes(arriving), purpose)
        views = [view for pieces in arriving for view in pieces]
        for view, piece in zip(views, torch.split(arrived, [len(view) for view in views]), strict=True):
            view.copy_(piece)


def _sizes(pieces_of_place: Sequence[Sequence[Tensor]]) -> list[int]:
    return [sum(map(len, pieces)) for pieces in pieces_of_place]
