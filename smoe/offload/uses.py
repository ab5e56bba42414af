"""Uses: what passes ask for, and what becomes of what was brought in ahead of them. Counts of ExpertStats. Torch-free.

An expert is asked for once a pass, and is then a hit, late, or a miss.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from smoe.core.stats import ExpertStats
from smoe.offload.policies.protocols import Key, Reason


class Uses:
    """`epoch` is the ordinal of the forward. `prefetch_paid` are, by layer, of the prefetches into it that ended: how
    many were asked for, and how many wasted."""

    def __init__(self, layers: Sequence[int]) -> None:
        self.epoch = 1
        self.prefetch_paid = {layer: [0, 0] for layer in layers}
        self._hits = self._late = self._cold = self._collisions = self._compulsory = 0
        self._prefetched = self._prefetch_used = self._wasted = self._admitted = self._evictions = 0
        self._unused: set[Key] = set()  # prefetched, not asked for yet
        self._brought: dict[int, dict[int, int]] = {layer: {} for layer in layers}  # expert -> epoch of its transfer

    def hit(self, layer: int, experts: Sequence[int]) -> None:
        self._hits += len(experts)
        if self._unused:
            used = self._unused.intersection([(layer, expert) for expert in experts])
            self._prefetch_used += len(used)
            self.prefetch_paid[layer][0] += len(used)
            self._unused -= used

    def late(self, key: Key) -> None:
        self._late += 1
        if key in self._unused:
            self._unused.remove(key)
            self.prefetch_paid[key[0]][0] += 1

    def missed(self, layer: int, experts: Sequence[int]) -> None:
        brought = self._brought[layer]
        for expert in experts:
            epoch = brought.get(expert)
            if epoch == self.epoch:
                self._collisions += 1
            else:
                self._cold += 1
                self._compulsory += epoch is None

    def begun(self, key: Key, reason: Reason) -> None:
        """A transfer has a slot."""
        self._brought[key[0]][key[1]] = self.epoch
        if reason is Reason.PREFETCH:
            self._prefetched += 1
            self._unused.add(key)
        self._admitted += reason is Reason.ADMISSION

    def lost(self, key: Key, *, evicted: bool) -> None:
        """It has no slot any more."""
        self._evictions += evicted
        if key in self._unused:
            self._unused.remove(key)
            self._wasted += 1
            self.prefetch_paid[key[0]][1] += 1

    def stats(self) -> ExpertStats:
        return ExpertStats(
            hits=self._hits,
            late=self._late,
            cold_misses=self._cold,
            collision_misses=self._collisions,
            compulsory_misses=self._compulsory,
            prefetched=self._prefetched,
            prefetch_used=self._prefetch_used,
            wasted=self._wasted,
            admitted=self._admitted,
            evictions=self._evictions,
        )

    def problems(self, owned: AbstractSet[Key]) -> list[str]:
        """What does not hold of: every prefetch is among those that hold a slot, or accounted for."""
        found = []
        if not self._unused <= owned:
            found.append("an unused prefetch that holds no slot")
        if self._prefetched < self._prefetch_used + self._wasted + len(self._unused):
            found.append("more prefetches ended than began")
        return found
