"""Peer: messages to and from one other rank over one connection, none of which waits.

A message is a frame: a tag, its length, its bytes. Two ranks ask for their messages in the same order but for those of
transfers that are open at the same time, which their tags tell apart. So a frame that nobody has asked for yet belongs
to something later, and stays in the socket.
"""

import socket
import struct
from collections import deque

_HEAD = struct.Struct("<IQ")


class Peer:
    def __init__(self, rank: int, connection: socket.socket) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.rank, self._connection = rank, connection
        self.fd = connection.fileno()
        self._rooms: dict[int, deque[memoryview]] = {}
        self._head = bytearray(_HEAD.size)
        self._filled = 0  # of the head, or with `_into` of the message
        self._tag: int | None = None
        self._length = 0
        self._into: memoryview | None = None
        self._going: deque[memoryview] = deque()
        self._arrived: dict[int, int] = {}
        self._asked: dict[int, int] = {}

    @property
    def wants_out(self) -> bool:
        return bool(self._going)

    @property
    def wants_in(self) -> bool:
        """Whether a message is asked for that is not there: only then is the connection read."""
        return any(self._rooms.values()) or self._into is not None

    def ask(self, tag: int, room: memoryview) -> int:
        """The next message of this tag goes into the first bytes of `room`. Returns its number, for `has`."""
        self._rooms.setdefault(tag, deque()).append(room)
        self._asked[tag] = self._asked.get(tag, 0) + 1
        return self._asked[tag]

    def has(self, tag: int, number: int) -> bool:
        return self._arrived.get(tag, 0) >= number

    def send(self, tag: int, message: memoryview) -> None:
        """Raises OSError when the other end has gone. `message` stays as it is until `wants_out` is false."""
        head = memoryview(_HEAD.pack(tag, message.nbytes))
        self._going.append(head)
        if message.nbytes:
            self._going.append(message)
        if len(self._going) <= 2:
            self.write()

    def write(self) -> None:
        """As much as the connection takes now."""
        while self._going:
            try:
                sent = self._connection.sendmsg(list(self._going)[:2])
            except BlockingIOError:
                return
            while sent:
                first = self._going[0]
                if sent < first.nbytes:
                    self._going[0] = first[sent:]
                    break
                sent -= first.nbytes
                self._going.popleft()

    def read(self) -> None:
        """As much as is there and asked for. Raises EOFError when the other end has gone."""
        while True:
            if self._into is None and not self._begin():
                return
            if self._into is None:
                continue
            if self._filled < self._length:
                got = self._receive(self._into[self._filled : self._length])
                if got == 0:
                    return
                self._filled += got
            if self._filled == self._length:
                assert self._tag is not None
                self._arrived[self._tag] = self._arrived.get(self._tag, 0) + 1
                self._into, self._tag, self._filled = None, None, 0

    def close(self) -> None:
        self._connection.close()

    def _begin(self) -> bool:
        """Reads a head and finds the room for what follows; False when there is none, or no more to read now."""
        if self._tag is None:
            if not any(self._rooms.values()):
                return False
            got = self._receive(memoryview(self._head)[self._filled :])
            if got == 0:
                return False
            self._filled += got
            if self._filled < _HEAD.size:
                return True
            self._tag, self._length = _HEAD.unpack(self._head)
        rooms = self._rooms.get(self._tag)
        if not rooms:
            return False  # of something later
        room = rooms.popleft()
        if room.nbytes < self._length:
            raise OSError(f"a message of {self._length} bytes where {room.nbytes} were expected at most")
        self._into, self._filled = room, 0
        return True

    def _receive(self, into: memoryview) -> int:
        """Bytes read, 0 when there are none now. Raises EOFError at the end of the connection."""
        try:
            got = self._connection.recv_into(into)
        except BlockingIOError:
            return 0
        if got == 0:
            raise EOFError("connection closed")
        return got
