"""How far slow work is: a bar on a terminal, a line every tenth elsewhere; both on stderr."""

import sys
from typing import Self


class Progress:
    """`total` steps of `what`."""

    def __init__(self, what: str, total: int) -> None:
        from rich.console import Console
        from rich.progress import Progress as Bar

        self._what, self._total, self._tenth = what, total, 0
        self._bar = Bar(console=Console(stderr=True), disable=not sys.stderr.isatty())
        self._task = self._bar.add_task(what, total=total)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def update(self, done: int) -> None:
        self._bar.update(self._task, completed=done)
        tenth = 10 * done // max(1, self._total)
        if self._bar.disable and tenth > self._tenth:
            self._tenth = tenth
            print(f"{self._what}: {done:,} of {self._total:,}", file=sys.stderr)
