"""How far slow work is: a bar on a terminal, a line now and then elsewhere; both on stderr."""

import sys
import time
from typing import Self

EVERY_S = 10.0


class Progress:
    """`total` steps of `what`."""

    def __init__(self, what: str, total: int) -> None:
        from rich.console import Console
        from rich.progress import Progress as Bar

        self._what, self._total = what, total
        self._bar = Bar(console=Console(stderr=True), disable=not sys.stderr.isatty())
        self._task = self._bar.add_task(what, total=total)
        self._began = self._said = time.monotonic()

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def update(self, done: int, total: int | None = None) -> None:
        """`total` when it was not known before."""
        self._total = self._total if total is None else total
        self._bar.update(self._task, completed=done, total=self._total)
        now = time.monotonic()
        ended = 0 < self._total <= done
        if self._bar.disable and (ended or now - self._said >= EVERY_S):
            self._said = now
            after = ""
            if ended:
                after = f" after {_clock(now - self._began)}"
            elif done:
                after = f", about {_clock((now - self._began) * (self._total - done) / done)} to go"
            print(f"{self._what}: {done:,} of {self._total:,}{after}", file=sys.stderr, flush=True)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"
