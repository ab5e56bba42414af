"""Group: the exchanges that everything else is built on, for ranks that call them in the same order.

Shapes: G ranks of the group, N rows here. Rows may have any trailing shape and any dtype that the backend carries.
"""

from collections.abc import Sequence
from typing import Protocol

import torch

from smoe.collectives.ledger import Ledger

Tensor = torch.Tensor


class Transfer(Protocol):
    """The messages of one exchange between this rank and others, one from and one to each at most.

    Each is under way from when it is asked for. Tensors are contiguous, and stay as they are until `finish`.
    """

    def receive(self, place: int, room: Tensor) -> None:
        """What comes from `place` goes into the first bytes of `room`, which may be larger than it."""
        ...

    def send(self, place: int, rows: Tensor) -> None: ...

    def arrived(self, place: int) -> None:
        """Returns when the message from `place` is there."""
        ...

    def finish(self) -> None:
        """Returns when all that was asked for is there, and all is sent. Then the ledger counts one collective."""
        ...


class Group(Protocol):
    """`rank` is this one's place in the group, `ranks[g]` the global rank at place g.

    A rank that is lost makes the others' calls raise CollectiveError within the group's time limit; the group is of
    no use then.
    """

    rank: int
    ranks: tuple[int, ...]
    ledger: Ledger
    messages: bool
    """Whether `open` can be used: whether a rank can receive less than it has made room for."""

    @property
    def size(self) -> int: ...

    def open(self, purpose: str) -> Transfer:
        """Several may be open at once; of those of one purpose, messages between two ranks keep their order."""
        ...

    def all_to_all(self, rows: Tensor, send: Sequence[int], receive: Sequence[int], purpose: str) -> Tensor:
        """The first send[0] rows go to place 0, and so on; returns the rows received, by the place they come from.

        The counts of all ranks agree: send[g] here is receive[rank] there. Changes nothing.
        """
        ...

    def all_gather(self, rows: Tensor, purpose: str, counts: Sequence[int] | None = None) -> Tensor:
        """The rows of all ranks by place: `counts[g]` of place g, or equally many each."""
        ...

    def all_reduce(self, values: Tensor, purpose: str) -> Tensor:
        """The sum over ranks, in an order that is the backend's. Changes `values`, which may be the result."""
        ...


class SoloGroup:
    """One rank alone: the local case, in which every exchange hands back what it is given."""

    size = 1
    messages = False

    def __init__(self, ledger: Ledger | None = None, rank: int = 0) -> None:
        """`rank` of all ranks, where a larger world has groups of one."""
        self.rank = 0
        self.ranks: tuple[int, ...] = (rank,)
        self.ledger = Ledger(0, ["here"]) if ledger is None else ledger

    def open(self, purpose: str) -> Transfer:
        raise NotImplementedError("one rank has nobody to send to")

    def all_to_all(self, rows: Tensor, send: Sequence[int], receive: Sequence[int], purpose: str) -> Tensor:
        self.ledger.count(purpose, {self.ranks[0]: rows.nbytes})
        return rows

    def all_gather(self, rows: Tensor, purpose: str, counts: Sequence[int] | None = None) -> Tensor:
        self.ledger.count(purpose, {self.ranks[0]: rows.nbytes})
        return rows

    def all_reduce(self, values: Tensor, purpose: str) -> Tensor:
        self.ledger.count(purpose, {self.ranks[0]: values.nbytes})
        return values
