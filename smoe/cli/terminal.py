"""What goes where: answers to stdout, everything else to stderr."""

import contextlib
import sys
from collections.abc import Iterator
from typing import TextIO

from smoe.core.request import Delta


@contextlib.contextmanager
def reserved_stdout() -> Iterator[TextIO]:
    """The real stdout, for answers alone: libraries that print (Ray, about dead workers) reach stderr meanwhile."""
    out = sys.stdout
    if hasattr(out, "reconfigure"):
        out.reconfigure(encoding="utf-8", errors="replace")
    sys.stdout = sys.stderr
    try:
        yield out
    finally:
        sys.stdout = out


@contextlib.contextmanager
def working(what: str) -> Iterator[None]:
    """Says on stderr that something slow goes on: a spinner on a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(f"{what} ..."):
        yield


class Streamer:
    """Writes answers as they come: prompt after prompt, each whole, whichever is ready first.

    Without a tokenizer there is no text, and token ids are written instead.
    """

    def __init__(self, out: TextIO, num_prompts: int) -> None:
        self._out = out
        self._num_prompts = num_prompts

    def begin(self, index: int) -> None:
        if self._num_prompts > 1:
            print(f"{'' if index == 0 else chr(10)}[{index + 1}/{self._num_prompts}]", file=self._out)

    def piece(self, delta: Delta, *, has_text: bool) -> None:
        text = delta.text if has_text else "".join(f"{token_id} " for token_id in delta.token_ids)
        if text:
            self._out.write(text)
            self._out.flush()

    def end(self) -> None:
        print(file=self._out, flush=True)
