"""Servers that are compared. One that waits for its turn is stopped, so that it takes nothing of the processor."""

import os
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from smoe.bench.slo.child import served
from smoe.bench.slo.client import Target
from smoe.core.errors import StartupError

_BATCHED = ("--continuous-batching", "--cb-num-blocks", "512", "--cb-block-size", "32", "--cb-max-batch-tokens", "2048")
TRANSFORMERS: dict[str, tuple[str, ...]] = {
    "one at a time": (),
    "continuous batching": _BATCHED,
    "continuous batching, sdpa": (*_BATCHED, "--attn-implementation", "sdpa"),
}
"""Settings of `transformers serve` from which the fastest is taken. Measured slower: bfloat16, --compile. Its cache
holds 16,384 tokens, more than 32 streams have here; left to itself it takes most of the machine's memory for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """`pid` is None where it is not to be stopped: a server of several processes that watch one another."""

    name: str
    target: Target
    pid: int | None = None

    @contextmanager
    def turn(self) -> Iterator[None]:
        """It runs within only; outside it is stopped."""
        self._signal(signal.SIGCONT)
        try:
            yield
        finally:
            self._signal(signal.SIGSTOP)

    def _signal(self, number: signal.Signals) -> None:
        if self.pid is not None:
            os.kill(self.pid, number)


@contextmanager
def smoe_server(name: str, flags: Sequence[str], *, stops: bool = True) -> Iterator[Contender]:
    command = [sys.executable, "-m", "smoe", "serve", "--served-model-name", "served", *flags]
    with served(name, command) as child:
        contender = Contender(
            name=name, target=Target(base_url=child.url, model="served"), pid=child.pid if stops else None
        )
        with _resumed(contender):
            yield contender


@contextmanager
def transformers_server(name: str, folder: Path, setting: str) -> Iterator[Contender]:
    """Raises StartupError where its command is not installed."""
    found = shutil.which("transformers", path=os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])))
    if found is None:
        raise StartupError("transformers serve: no command transformers")
    command = [found, "serve", str(folder), "--device", "cpu", "--dtype", "float32", "--log-level", "error"]
    with served(name, [*command, *TRANSFORMERS[setting]]) as child:
        contender = Contender(name=name, target=Target(base_url=child.url, model=str(folder)), pid=child.pid)
        with _resumed(contender):
            yield contender


@contextmanager
def _resumed(contender: Contender) -> Iterator[None]:
    """A stopped process would not hear that it is to end."""
    try:
        yield
    finally:
        contender._signal(signal.SIGCONT)
