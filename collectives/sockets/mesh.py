"""Mesh: one TCP connection between each two ranks of a world, all served by the thread that waits.

gloo hands every message to a thread of its own and back, which costs 0.2 to 1 ms an exchange on a small machine; a
connection that the waiting thread reads itself costs some 20 us.
"""

import contextlib
import secrets
import socket
import time
from collections.abc import Callable
from typing import Protocol

from smoe.collectives.sockets.peer import Peer
from smoe.core.errors import CollectiveError

_KEY_BYTES = 32
_HELLO = _KEY_BYTES + 4


class Store(Protocol):
    """torch's TCPStore, as far as it is used: `get` waits for a key."""

    def set(self, key: str, value: str) -> None: ...

    def get(self, key: str) -> bytes: ...


class Mesh:
    """`peers[r]` is the connection to rank r, None for this rank itself."""

    def __init__(self, store: Store, rank: int, size: int, host: str, timeout_s: float) -> None:
        """`host` is an address of this rank that the others reach. Collective.

        Raises CollectiveError when a rank does not come within the time limit.
        """
        self.rank, self.timeout_s = rank, timeout_s
        self.peers: list[Peer | None] = [None] * size
        deadline = time.monotonic() + timeout_s
        if rank == 0:
            store.set("mesh/key", secrets.token_hex(_KEY_BYTES // 2))
        try:
            with socket.create_server((host, 0), backlog=size) as door:
                store.set(f"mesh/{rank}", f"{host} {door.getsockname()[1]}")
                key = store.get("mesh/key")
                for other in range(rank):
                    self.peers[other] = Peer(other, _connect(store, other, key, rank, deadline))
                while None in self.peers[rank + 1 :]:
                    other, connection = _accept(door, key, deadline)
                    self.peers[other] = Peer(other, connection)
        except (OSError, RuntimeError, ValueError) as error:
            self.close()
            missing = [r for r in range(size) if r != rank and self.peers[r] is None]
            first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise CollectiveError(f"rank {rank} finds no way to ranks {missing}: {first}") from error

    def peer(self, rank: int) -> Peer:
        found = self.peers[rank]
        assert found is not None, f"rank {rank} has no connection to itself"
        return found

    def close(self) -> None:
        """The other ranks' exchanges with this one fail from now on. Idempotent."""
        for peer in self.peers:
            if peer is not None:
                peer.close()


def _connect(store: Store, other: int, key: bytes, rank: int, deadline: float) -> socket.socket:
    host, port = store.get(f"mesh/{other}").decode().split()
    connection = socket.create_connection((host, int(port)), timeout=_left(deadline))
    connection.sendall(key + rank.to_bytes(4, "little"))
    return connection


def _accept(door: socket.socket, key: bytes, deadline: float) -> tuple[int, socket.socket]:
    """The next rank that knows the key; whoever does not is turned away."""
    while True:
        door.settimeout(_left(deadline))
        connection, _ = door.accept()
        connection.settimeout(_left(deadline))
        with contextlib.suppress(OSError, EOFError):
            hello = _read(connection.recv, _HELLO)
            if secrets.compare_digest(hello[:_KEY_BYTES], key):
                return int.from_bytes(hello[_KEY_BYTES:], "little"), connection
        connection.close()


def _read(receive: Callable[[int], bytes], count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = receive(count - len(data))
        if not more:
            raise EOFError
        data += more
    return data


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("not all ranks came in time")
    return left
