"""Exact answers to a missing expert: wait for it, or compute it where its weights are (spec P3; "One runtime" 4)."""

from collections import Counter

import numpy as np

from smoe.offload.policies.protocols import Costs, MissDecision, Routing


class _Exact:
    needs_logits = False
    lossy = False
    computes = True

    def decide(self, routing: Routing, resident: frozenset[int], late: frozenset[int], costs: Costs) -> MissDecision:
        weights = np.empty(0, np.float32) if routing.weights is None else routing.weights
        rows = Counter(routing.ids.ravel().tolist())
        missing = {expert: count for expert, count in rows.items() if expert not in resident and expert >= 0}
        return MissDecision(ids=routing.ids, weights=weights, compute=self._compute(missing, late, costs))

    def _compute(self, rows_of: dict[int, int], late: frozenset[int], costs: Costs) -> frozenset[int]:
        """`rows_of` the experts that are not resident, late ones among them."""
        raise NotImplementedError


class Wait(_Exact):
    """Every missing expert is fetched and waited for."""

    computes = False

    def _compute(self, rows_of: dict[int, int], late: frozenset[int], costs: Costs) -> frozenset[int]:
        return frozenset()


class Compute(_Exact):
    """Nothing is waited for: each missing expert is computed where its weights are, also while it is under way."""

    def _compute(self, rows_of: dict[int, int], late: frozenset[int], costs: Costs) -> frozenset[int]:
        return frozenset(rows_of)


class Auto(_Exact):
    """Waits for the late; of the missing some are fetched, one after the other behind the late, while the others are
    computed in place, one after the other. Those of most rows are fetched, and as many as make the later of the two
    ends earliest; of equal splits the one that fetches most.

    That is P3.1b with "minimise the makespan" for its "minimise the difference", over the experts of one pass.
    """

    def _compute(self, rows_of: dict[int, int], late: frozenset[int], costs: Costs) -> frozenset[int]:
        missing = sorted((expert for expert in rows_of if expert not in late), key=lambda e: (-rows_of[e], e))
        fetch_s = costs.fetch_s
        computing_s = [0.0]
        for expert in reversed(missing):
            computing_s.append(computing_s[-1] + costs.compute_s(rows_of[expert]))
        num = len(missing)
        ends = [max((len(late) + n) * fetch_s if n else 0.0, computing_s[num - n]) for n in range(num + 1)]
        fetched = min(range(num, -1, -1), key=ends.__getitem__)
        return frozenset(missing[fetched:])
