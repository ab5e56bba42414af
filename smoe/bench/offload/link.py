"""The link of the benchmark: plain direct reads of expert-sized pieces of the model's own files."""

import random
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from smoe.bench.disk import Place, best, best_rates, plain_rate
from smoe.core.pages import PAGE_BYTES
from smoe.offload.arena import Arena

_SLOTS = 16
_LARGEST = 16 << 20  # longer reads are no faster, and all slots together should stay small


class Link:
    """Chooses the best number of threads when made; `rate` measures again with it, a moment's worth of reads."""

    def __init__(
        self, files: Sequence[Path], expert_bytes: int, *, repeats: int, pieces: int = 48, seed: int = 0
    ) -> None:
        """Raises OSError where the files cannot be read past the page cache."""
        self._length = max(PAGE_BYTES, min(expert_bytes, _LARGEST) // PAGE_BYTES * PAGE_BYTES)
        self._places = expert_places(files, self._length)
        if not self._places:
            raise OSError(f"no file has {self._length} bytes to read")
        self._arena = Arena(_SLOTS, self._length, poison=True)  # filling it touches its pages
        self._chance = random.Random(seed)
        self.rates = best_rates(self._sample(pieces), self._length, self._arena, repeats)
        self.threads = next(threads for threads, rates in self.rates.items() if rates is best(self.rates))

    @property
    def typical(self) -> float:
        """Bytes/s, the median of the best number of threads."""
        return median(best(self.rates))

    def rate(self) -> float:
        """Bytes/s now."""
        return plain_rate(self._sample(_SLOTS), self._length, self._arena, self.threads)

    def _sample(self, count: int) -> list[Place]:
        return self._chance.sample(self._places, min(count, len(self._places)))


def expert_places(files: Sequence[Path], length: int) -> list[Place]:
    """Every whole piece of `length` bytes of the files, from their page boundaries."""
    return [(path, start) for path in files for start in range(0, path.stat().st_size - length + 1, length)]
