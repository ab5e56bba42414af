"""A private two-way channel between two actors: pickled messages over an authenticated TCP connection.

Reads block in the kernel. Ray's compiled graphs carry a message about as fast, but whoever waits on one spins on a
semaphore, and on a machine where the model itself runs on the cores that spin takes a core from it.
"""

import contextlib
import os
import pickle
import secrets
import socket
import struct
from dataclasses import dataclass
from multiprocessing.connection import Connection, Listener, answer_challenge, deliver_challenge
from typing import Any


@dataclass(frozen=True, slots=True)
class Address:
    """Where to connect, and the key that both ends prove to know before any message is unpickled."""

    host: str
    port: int
    key: bytes


class Channel:
    """One end. `receive` raises EOFError, `send` OSError, when the other end is gone. One reader, one writer.

    With `stall_s`, a message that stops half-way for so long raises OSError at this end.
    """

    def __init__(self, connection: Connection, stall_s: float | None = None) -> None:
        self._connection = connection
        # Messages are small and each is awaited: with Nagle's algorithm a reply could wait for an acknowledgement.
        with socket.socket(fileno=os.dup(connection.fileno())) as handle:
            handle.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _limit(handle, stall_s)

    def fileno(self) -> int:
        return self._connection.fileno()

    def send(self, message: object) -> None:
        self._connection.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))

    def receive(self) -> Any:
        return pickle.loads(self._connection.recv_bytes())

    def close(self) -> None:
        """Ends both directions, so that a thread blocked in `receive` at either end wakes up with EOFError."""
        if self._connection.closed:
            return
        with socket.socket(fileno=os.dup(self._connection.fileno())) as handle, contextlib.suppress(OSError):
            handle.shutdown(socket.SHUT_RDWR)  # fails when the other end was first
        self._connection.close()


class Door:
    """The listening end: `address` is handed to the one process that may come in, through `accept`."""

    def __init__(self, host: str) -> None:
        key = secrets.token_bytes(32)
        self._listener = Listener((host, 0), "AF_INET", authkey=key)
        port = self._listener.address[1]
        self.address = Address(host, int(port), key)

    def accept(self) -> Channel:
        """Waits for the other end, then closes the door behind it."""
        try:
            return Channel(self._listener.accept())
        finally:
            self._listener.close()


def connect(address: Address, stall_s: float | None = None, *, handshake_s: float | None = None) -> Channel:
    """Raises OSError when nobody listens, or has not proved within `handshake_s` that it is who it should be."""
    with socket.create_connection((address.host, address.port), timeout=handshake_s) as handle:
        handle.settimeout(None)
        _limit(handle, handshake_s)
        connection = Connection(handle.detach())
    try:
        answer_challenge(connection, address.key)
        deliver_challenge(connection, address.key)
    except BaseException:
        connection.close()
        raise
    return Channel(connection, stall_s)


def _limit(handle: socket.socket, stall_s: float | None) -> None:
    """For each read and each write; none: they wait for ever."""
    limit = struct.pack("ll", int(stall_s or 0), int((stall_s or 0) % 1 * 1e6))
    handle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    handle.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
