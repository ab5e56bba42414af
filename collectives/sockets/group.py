"""SocketGroup: a Group over the connections of a mesh. Sums over ranks are always in ascending place."""

import select
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from smoe.collectives.ledger import PURPOSES, Ledger
from smoe.collectives.sockets.mesh import Mesh
from smoe.collectives.sockets.peer import Peer
from smoe.core.errors import CollectiveError

Tensor = torch.Tensor
_MAX_GROUPS = 1 << 16


class SocketGroup:
    """CPU tensors. `number` tells the groups of one mesh apart: those that a rank is in have different ones."""

    messages = True

    def __init__(self, mesh: Mesh, ranks: Sequence[int], ledger: Ledger, number: int) -> None:
        assert 0 <= number < _MAX_GROUPS
        self.rank, self.ranks = list(ranks).index(mesh.rank), tuple(ranks)
        self.ledger = ledger
        self._mesh, self._number = mesh, number

    @property
    def size(self) -> int:
        return len(self.ranks)

    def open(self, purpose: str) -> "SocketTransfer":
        return SocketTransfer(self, purpose)

    def all_to_all(self, rows: Tensor, send: Sequence[int], receive: Sequence[int], purpose: str) -> Tensor:
        received = rows.new_empty((sum(receive), *rows.shape[1:]))
        parts, rooms = torch.split(rows.contiguous(), list(send)), torch.split(received, list(receive))
        self._exchange(parts, rooms, purpose).finish(kept_bytes=parts[self.rank].nbytes)
        return received

    def all_gather(self, rows: Tensor, purpose: str, counts: Sequence[int] | None = None) -> Tensor:
        counts = [len(rows)] * self.size if counts is None else list(counts)
        gathered, rows = rows.new_empty((sum(counts), *rows.shape[1:])), rows.contiguous()
        transfer = self._exchange([rows] * self.size, torch.split(gathered, counts), purpose)
        transfer.finish(kept_bytes=rows.nbytes)
        return gathered

    def all_reduce(self, values: Tensor, purpose: str) -> Tensor:
        """Each rank sums its share of the values, in ascending place, and tells the others. Changes nothing."""
        flat = values.contiguous().view(-1)
        shares = flat.tensor_split(self.size)
        own = shares[self.rank]
        chunks = own.new_empty((self.size, own.numel()))
        self._exchange(shares, chunks.unbind(), purpose).wait()
        total = chunks[0].clone()
        for chunk in chunks[1:]:
            total += chunk
        result = torch.empty_like(flat)
        self._exchange([total] * self.size, result.tensor_split(self.size), purpose).wait()
        # Of equal shares, as every backend counts it.
        share = 2 * values.nbytes // self.size
        self.count(purpose, [0 if place == self.rank else share for place in range(self.size)])
        return result.view(values.shape)

    def count(self, purpose: str, sent: Sequence[int]) -> None:
        self.ledger.count(purpose, dict(zip(self.ranks, sent, strict=True)))

    def tag(self, purpose: str) -> int:
        known = PURPOSES.index(purpose) if purpose in PURPOSES else len(PURPOSES)
        return self._number * (len(PURPOSES) + 1) + known

    def peer(self, place: int) -> Peer:
        return self._mesh.peer(self.ranks[place])

    def _exchange(self, parts: Sequence[Tensor], rooms: Sequence[Tensor], purpose: str) -> "SocketTransfer":
        """parts[g] to each place, and into rooms[g] what comes from it; to be waited for."""
        transfer = self.open(purpose)
        for place in self._others():
            transfer.receive(place, rooms[place])
        for place in self._others():
            transfer.send(place, parts[place])
        rooms[self.rank].copy_(parts[self.rank])
        return transfer

    def _others(self) -> list[int]:
        """Places but this one, the next first: no two ranks begin with the same one."""
        return [(self.rank + step) % self.size for step in range(1, self.size)]

    def progress_until(self, done: Callable[[], bool], purpose: str) -> None:
        """Reads and writes all connections until then. Raises CollectiveError past the time limit."""
        with self.ledger.timed():
            self._progress(done, purpose)

    def _progress(self, done: Callable[[], bool], purpose: str) -> None:
        peers = [self.peer(place) for place in self._others()]
        deadline = 0.0
        while True:
            for peer in peers:
                try:
                    if peer.wants_in:
                        peer.read()
                    if peer.wants_out:
                        peer.write()
                except (OSError, EOFError) as error:
                    raise self.lost(purpose, f"rank {peer.rank} is gone ({error})") from error
            if done():
                return
            now = time.monotonic()
            deadline = deadline or now + self._mesh.timeout_s
            if now >= deadline:
                silent = [peer.rank for peer in peers if peer.wants_in or peer.wants_out]
                raise self.lost(purpose, f"nothing from ranks {silent} within {self._mesh.timeout_s:g} s")
            _wait(peers, deadline - now)

    def lost(self, purpose: str, why: str) -> CollectiveError:
        return CollectiveError(f"{purpose} over ranks {list(self.ranks)}: {why}")


class SocketTransfer:
    """A Transfer (smoe.collectives.group)."""

    def __init__(self, group: SocketGroup, purpose: str) -> None:
        self._group, self._purpose, self._tag = group, purpose, group.tag(purpose)
        self._sent = [0] * group.size
        self._coming: dict[int, int] = {}
        self._going: set[int] = set()

    def receive(self, place: int, room: Tensor) -> None:
        self._coming[place] = self._group.peer(place).ask(self._tag, _bytes(room))

    def send(self, place: int, rows: Tensor) -> None:
        self._sent[place] += rows.nbytes
        self._going.add(place)
        peer = self._group.peer(place)
        try:
            with self._group.ledger.timed():
                peer.send(self._tag, _bytes(rows))
        except OSError as error:
            raise self._group.lost(self._purpose, f"rank {peer.rank} is gone ({error})") from error

    def arrived(self, place: int) -> None:
        peer, number = self._group.peer(place), self._coming.pop(place)
        self._group.progress_until(lambda: peer.has(self._tag, number), self._purpose)

    def wait(self) -> None:
        """As `finish`, but the ledger is left to the caller."""
        coming = [(self._group.peer(place), number) for place, number in self._coming.items()]
        going = [self._group.peer(place) for place in self._going]
        self._group.progress_until(
            lambda: (
                all(peer.has(self._tag, number) for peer, number in coming)
                and not any(peer.wants_out for peer in going)
            ),
            self._purpose,
        )

    def finish(self, kept_bytes: int = 0) -> None:
        """`kept_bytes` are what this rank handed to itself."""
        self.wait()
        self._sent[self._group.rank] += kept_bytes
        self._group.count(self._purpose, self._sent)


def _bytes(tensor: Tensor) -> memoryview:
    """The tensor's own memory."""
    assert tensor.is_contiguous()
    flat: Any = tensor.view(-1).view(torch.uint8).numpy()  # numpy's arrays are buffers, which their stubs do not say
    return memoryview(flat) if tensor.numel() else memoryview(b"")


def _wait(peers: Sequence[Peer], timeout_s: float) -> None:
    """Until one of them can go on."""
    poll = select.poll()
    for peer in peers:
        events = (select.POLLIN if peer.wants_in else 0) | (select.POLLOUT if peer.wants_out else 0)
        if events:
            poll.register(peer.fd, events)
    poll.poll(timeout_s * 1000)
