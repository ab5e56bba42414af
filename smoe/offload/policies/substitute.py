"""Substitution (spec P4): a missing expert of low gate weight is replaced by a resident one. Changes the outputs.

Shapes: T rows, K choices a row in descending weight, E experts.
"""

import math
from dataclasses import dataclass

import numpy as np

from smoe.offload.policies.protocols import Array, Costs, MissDecision, Routing


@dataclass(frozen=True, slots=True)
class Rule:
    """Which misses are fetched: those of a gate weight (scaled to sum to 1 over the row) of at least `threshold`, and
    the first choice unless `first_too`. A threshold of infinity substitutes all others."""

    threshold: float
    first_too: bool = False


class Substitute:
    """The substitute is the resident expert of the highest router logit that the row has not chosen and that does not
    stand in for another of its choices; of equal logits the lowest expert. Without one the miss is waited for.

    What one row waits for is there for all rows: no row substitutes it. Rows whose weights are not finite wait.
    """

    needs_logits = True
    lossy = True
    computes = False

    def __init__(self, rule: Rule, *, own_weight: bool = False) -> None:
        """A substitute takes the weight of what it replaces; with `own_weight` the row's weights become the router's
        probabilities of the experts executed, scaled to the sum that the row's weights had."""
        self._rule, self._own_weight = rule, own_weight

    def decide(self, routing: Routing, resident: frozenset[int], late: frozenset[int], costs: Costs) -> MissDecision:
        assert routing.weights is not None
        assert routing.logits is not None
        ids, weights, logits = routing.ids, routing.weights, routing.logits
        row = ids[0].tolist() if len(ids) == 1 else None
        if row is not None and resident.issuperset(expert for expert in row if expert >= 0):
            return MissDecision(ids=ids, weights=weights)
        sums = weights.sum(axis=1, keepdims=True)
        shares = (weights / sums).astype(np.float64)
        if row is not None:
            row = self._one_row(row, shares[0].tolist(), logits[0], resident)
            new_ids = np.array([row], dtype=ids.dtype)
        else:
            new_ids = self._many_rows(ids, shares, logits, resident)
        changed = new_ids != ids
        if not changed.any():
            return MissDecision(ids=ids, weights=weights)
        return MissDecision(
            ids=new_ids,
            weights=_own_weights(new_ids, changed, logits, sums, weights) if self._own_weight else weights,
            substituted=changed.sum(axis=1),
            mass=np.where(changed, shares, 0).sum(axis=1),
        )

    def _one_row(self, row: list[int], shares: list[float], logits_E: Array, resident: frozenset[int]) -> list[int]:
        """`_many_rows` for one, which is what decoding asks for all the time."""
        replaced = [
            slot
            for slot, expert in enumerate(row)
            if expert >= 0
            and expert not in resident
            and (slot > 0 or self._rule.first_too)
            and shares[slot] < self._rule.threshold
        ]
        if replaced:
            logits = logits_E.tolist()
            allowed = [expert for expert in resident.difference(row) if logits[expert] > -math.inf]
            free = sorted(allowed, key=lambda expert: (-logits[expert], expert))
            for slot, expert in zip(replaced, free, strict=False):
                row[slot] = expert
        return row

    def _many_rows(self, ids: Array, shares: Array, logits_TE: Array, resident: frozenset[int]) -> Array:
        here_E = np.zeros(logits_TE.shape[1], dtype=bool)
        here_E[list(resident)] = True
        missing = ~here_E[ids] & (ids >= 0)
        replaced = missing & (shares < self._rule.threshold)
        if not self._rule.first_too:
            replaced[:, 0] = False
        fetched_E = np.zeros_like(here_E)
        waited = missing & ~replaced
        while True:
            fetched_E[ids[waited]] = True
            replaced &= ~fetched_E[ids]
            candidates, is_free = _candidates(ids, replaced, logits_TE, here_E)
            waited = replaced & ~is_free
            if not waited.any():
                break
        return np.where(replaced, candidates, ids).astype(ids.dtype)


def _candidates(ids: Array, replaced: Array, logits_TE: Array, here_E: Array) -> tuple[Array, Array]:
    """[T, K] the expert to stand in for each of `replaced`, and whether it may: resident and not the row's own."""
    candidates, is_free = ids.astype(np.intp), np.zeros(ids.shape, dtype=bool)
    rows = np.flatnonzero(replaced.any(axis=1))
    free = np.where(here_E, logits_TE[rows].astype(np.float32), -np.inf)
    own = candidates[rows]
    np.put_along_axis(free, np.where(own < 0, own.max(axis=1, keepdims=True), own), -np.inf, axis=1)
    order = np.argsort(-free, axis=1, kind="stable")
    turn = np.clip(np.cumsum(replaced[rows], axis=1) - 1, 0, None)
    candidates[rows] = np.take_along_axis(order, turn, axis=1)
    is_free[rows] = np.take_along_axis(free, candidates[rows], axis=1) > -np.inf
    return candidates, is_free


def _own_weights(new_ids: Array, changed: Array, logits_TE: Array, sums: Array, weights: Array) -> Array:
    executed = np.take_along_axis(logits_TE, new_ids.astype(np.intp), axis=1).astype(np.float32)
    shares = np.exp(executed - executed.max(axis=1, keepdims=True))
    own = shares / shares.sum(axis=1, keepdims=True) * sums
    return np.where(changed.any(axis=1, keepdims=True), own, weights).astype(weights.dtype)
