"""Chunks of a stream as server-sent events. What the plain ones of an answer share is encoded once."""

import json
import uuid
from json.encoder import encode_basestring
from typing import Any

from smoe.server.replies import Piece, Reply

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode  # made once: it costs as much as a chunk
_MARK = uuid.uuid4().hex
"""In the place of a text: nobody who names a model can know it."""


def event(body: dict[str, Any]) -> bytes:
    return b"data: " + _encode(body).encode() + b"\n\n"


class Chunks:
    """Of one HTTP request's answers."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._around: dict[int, tuple[bytes, bytes]] = {}

    def of(self, piece: Piece) -> bytes:
        if not self._reply.is_plain(piece):
            return event(self._reply.chunk(piece))
        around = self._around.get(piece.index)
        if around is None:
            shape = event(self._reply.chunk(Piece(index=piece.index, text=_MARK, token_ids=())))
            before, _, after = shape.partition(b'"%b"' % _MARK.encode())
            around = self._around[piece.index] = before, after
        return around[0] + encode_basestring(piece.text).encode() + around[1]
