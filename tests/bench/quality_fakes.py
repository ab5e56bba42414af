"""Small policies for tests of the quality benchmark."""

from collections.abc import Sequence

import numpy as np

from smoe.offload.policies.lru import LRU
from smoe.offload.policies.protocols import Admission, Costs, Key, MissDecision, PolicySet, Routing


class KeepFirst:
    """Waits for a row's heaviest expert; any other missing one is replaced by the resident expert with the largest
    logit that the row does not use yet, if there is one."""

    needs_logits = True
    lossy = True
    computes = False

    def decide(self, routing: Routing, resident: frozenset[int], late: frozenset[int], costs: Costs) -> MissDecision:
        assert routing.logits is not None
        assert routing.weights is not None
        ids, mass = routing.ids.copy(), np.zeros(len(routing.ids), np.float32)
        for row, chosen in enumerate(routing.ids):
            for place in range(1, len(chosen)):
                free = resident - set(chosen.tolist()) - set(ids[row].tolist())
                if int(chosen[place]) in resident or not free:
                    continue
                ids[row, place] = max(free, key=lambda expert: float(routing.logits[row, expert]))
                mass[row] += routing.weights[row, place] / routing.weights[row].sum()
        substituted = (ids != routing.ids).sum(axis=1)
        return MissDecision(ids=ids, weights=routing.weights, substituted=substituted, mass=mass)


class Wait:
    needs_logits = False
    lossy = False
    computes = False

    def decide(self, routing: Routing, resident: frozenset[int], late: frozenset[int], costs: Costs) -> MissDecision:
        assert routing.weights is not None
        return MissDecision(ids=routing.ids, weights=routing.weights)


class AdmitAll:
    def bypassed(self, layer: int, experts: Sequence[int], mass: Sequence[float]) -> Sequence[Key]:
        return [(layer, expert) for expert in experts]


def lossy(admission: Admission | None = None) -> PolicySet:
    return PolicySet(eviction=LRU(), prefetch=None, miss=KeepFirst(), admission=admission)


def lossless() -> PolicySet:
    return PolicySet(eviction=LRU(), prefetch=None, miss=Wait(), admission=None)
