"""Text from tokens one at a time, at a cost that does not grow with the answer.

A character may span several tokens; it is let through when its last byte is there. Only bytes that are certainly
no UTF-8 become U+FFFD. All pieces and the flush together are what decoding the whole answer gives.
"""

import codecs
from collections.abc import Callable, Sequence
from typing import Protocol

_REPLACEMENT = "\ufffd"
_CONTEXT = 5  # tokens of the prompt that a decoder gets to see, for the space before the first word
_MAX_PENDING = 16  # tokens: what is still no character after so many bytes never will be


class Detokenizer(Protocol):
    """State of one answer."""

    @property
    def is_holding(self) -> bool:
        """Whether some token's text is not complete, or not of one piece with what has been shown."""
        ...

    def push(self, token_id: int) -> str:
        """The text that this token makes complete, often its own."""
        ...

    def flush(self) -> str:
        """What was still held back, at the end of the answer."""
        ...


class ByteDetokenizer:
    """For vocabularies whose tokens are bytes: an incremental UTF-8 decoder over `bytes_of(token_id)`."""

    def __init__(self, bytes_of: Callable[[int], bytes], prompt_token_ids: Sequence[int] = ()) -> None:
        self._bytes_of = bytes_of
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        for token_id in prompt_token_ids[-_CONTEXT:]:  # a prompt may end inside a character
            self._decoder.decode(bytes_of(token_id))

    @property
    def is_holding(self) -> bool:
        return bool(self._decoder.getstate()[0])

    def push(self, token_id: int) -> str:
        return self._decoder.decode(self._bytes_of(token_id))

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


class WindowDetokenizer:
    """For any vocabulary: decodes the last tokens twice, without and with the new one, and shows the difference."""

    def __init__(self, decode: Callable[[list[int]], str], prompt_token_ids: Sequence[int] = ()) -> None:
        self._decode = decode
        self._window = list(prompt_token_ids[-_CONTEXT:])
        self._num_shown = len(self._window)
        self._shown = decode(self._window).rstrip(_REPLACEMENT)

    @property
    def is_holding(self) -> bool:
        return len(self._window) > self._num_shown

    def push(self, token_id: int) -> str:
        self._window.append(token_id)
        text = self._decode(self._window)
        incomplete = text.endswith(_REPLACEMENT) and len(self._window) - self._num_shown < _MAX_PENDING
        if incomplete:
            return ""
        if len(text) <= len(self._shown):
            self._window.pop()  # an invisible token; without this a run of them would grow the window
            return ""
        return self._show(text)

    def flush(self) -> str:
        text = self._decode(self._window)
        return self._show(text) if len(text) > len(self._shown) else ""

    def _show(self, text: str) -> str:
        new = text[len(self._shown) :]
        # The tokens just shown stay as context: a decoder may drop the space in front of its first token.
        self._window = self._window[self._num_shown :] or self._window
        self._num_shown = len(self._window)
        self._shown = self._decode(self._window)
        return new
