"""Exact answers to a missing expert: wait for it, or compute it where its weights are (spec P3; "One runtime" 4)."""

from collections import Counter

import numpy as np

from smoe.offload.policies.protocols import MissDecision, Routing


class _Exact:
    needs_logits = False
    lossy = False

    def decide(self, routing: Routing, resident: frozenset[int], fetch_s: float, compute_s: float) -> MissDecision:
        weights = np.empty(0, np.float32) if routing.weights is None else routing.weights
        compute = self._compute(routing, resident, fetch_s, compute_s)
        return MissDecision(ids=routing.ids, weights=weights, compute=compute)

    def _compute(self, routing: Routing, resident: frozenset[int], fetch_s: float, compute_s: float) -> frozenset[int]:
        raise NotImplementedError


class Wait(_Exact):
    """Every missing expert is fetched and waited for."""

    def _compute(self, routing: Routing, resident: frozenset[int], fetch_s: float, compute_s: float) -> frozenset[int]:
        return frozenset()


class Compute(_Exact):
    """No missing expert is fetched on demand: each is computed where its weights are."""

    def _compute(self, routing: Routing, resident: frozenset[int], fetch_s: float, compute_s: float) -> frozenset[int]:
        return frozenset(routing.ids.ravel().tolist()) - resident


class Auto(_Exact):
    """Computes a missing expert where it is if its rows cost less than fetching it, by the costs measured."""

    def _compute(self, routing: Routing, resident: frozenset[int], fetch_s: float, compute_s: float) -> frozenset[int]:
        rows = Counter(routing.ids.ravel().tolist())
        return frozenset(e for e, count in rows.items() if e not in resident and compute_s * count < fetch_s)
