"""Between a bank and its policies: what they are told of a pass, and what they put in its place.

Shapes: T rows, K choices a row.
"""

from typing import Protocol

import numpy as np
import torch

from smoe.models.bank import Lookahead, RoutedRows, Substitutions
from smoe.offload.policies.protocols import Array, MissDecision, Routing


class Wants(Protocol):
    """Of what policies look at, a Planner knows."""

    @property
    def needs_logits(self) -> bool: ...

    def wants_lookahead(self, layer: int) -> bool: ...


class Routings:
    """`lookahead` is that of the bank; `substitutions` are those since it was last set to None."""

    def __init__(self, wants: Wants, *, ids_alone: bool = False) -> None:
        """Policies that go by `ids_alone` get them in any order within a row."""
        self.lookahead: Lookahead | None = None
        self.substitutions: Substitutions | None = None
        self._wants, self._ids_alone = wants, ids_alone
        self._token_ids: Array | None = None

    def begin_forward(self, token_ids_T: torch.Tensor) -> None:
        self._token_ids, self.substitutions = token_ids_T.numpy(), None

    def of(self, rows: RoutedRows) -> tuple[Routing, Array | None]:
        """And the look-ahead, if policies want one."""
        layer, x_TD, ids_TK, weights_TK, logits_TE = rows
        ids, weights = ids_TK.numpy(), weights_TK.numpy()
        if self._ids_alone:
            return Routing(layer=layer, ids=ids, weights=weights, token_ids=self._token_ids), None
        ids, weights = _descending(ids, weights)
        logits = logits_TE.numpy() if logits_TE is not None and self._wants.needs_logits else None
        lookahead = None
        if self.lookahead is not None and self._wants.wants_lookahead(layer):
            lookahead = self.lookahead(layer, x_TD).numpy()
        return Routing(layer=layer, ids=ids, weights=weights, logits=logits, token_ids=self._token_ids), lookahead

    def replace(self, rows: RoutedRows, decision: MissDecision) -> RoutedRows:
        """What the decision computes instead; its substitutions are noted."""
        assert decision.substituted is not None
        assert decision.mass is not None
        slots_T, mass_T = decision.substituted, decision.mass
        if self.substitutions is not None:
            slots_T, mass_T = self.substitutions.slots_T + slots_T, self.substitutions.mass_T + mass_T
        self.substitutions = Substitutions(slots_T, mass_T)
        ids_TK = torch.from_numpy(np.ascontiguousarray(decision.ids, dtype=np.int32))
        weights_TK = torch.from_numpy(np.ascontiguousarray(decision.weights, dtype=np.float32))
        return RoutedRows(rows.layer, rows.x_TD, ids_TK, weights_TK)


def _descending(ids: Array, weights: Array) -> tuple[Array, Array]:
    """Both [T, K], each row by weight."""
    if len(ids) == 1:  # what decoding asks for all the time
        order = np.argsort(-weights[0], kind="stable")
        return ids[:, order], weights[:, order]
    order = np.argsort(-weights, axis=1, kind="stable")
    return np.take_along_axis(ids, order, 1), np.take_along_axis(weights, order, 1)
