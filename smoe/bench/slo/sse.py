"""Server-sent events from bytes as the network cuts them."""

from collections.abc import Iterator


class EventSplitter:
    """`feed` gives the data of every event that is whole by now; comments and other fields are left out. An event that
    its blank line has not ended is never given."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> Iterator[bytes]:
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                data, self._data = b"\n".join(self._data), []
                yield data
