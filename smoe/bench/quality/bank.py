"""EmulatedBank: what an offloaded bank would compute, with every expert in memory. T rows, K choices a row."""

import numpy as np
import torch

from smoe.bench.quality.ideal import IdealCache
from smoe.core.stats import ExpertStats
from smoe.models.bank import Lookahead, ResidentBank, Substitutions
from smoe.offload.policies.protocols import Array, MissDecision, Routing


class EmulatedBank:
    """Decisions by `cache`, arithmetic by `resident`: the bits of an OffloadedBank that decides the same."""

    def __init__(self, resident: ResidentBank, cache: IdealCache) -> None:
        self._resident, self.cache = resident, cache
        self._lookahead: Lookahead | None = None
        self._token_ids: Array | None = None
        self._decided: list[MissDecision] = []

    @property
    def needs_logits(self) -> bool:
        return self.cache.needs_logits

    def use_lookahead(self, lookahead: Lookahead) -> None:
        self._lookahead = lookahead

    def begin_forward(self, token_ids_T: torch.Tensor) -> None:
        self._token_ids = token_ids_T.numpy()
        self._decided.clear()
        self.cache.begin_forward()

    def substitutions(self) -> Substitutions | None:
        slots = [decision.substituted for decision in self._decided if decision.substituted is not None]
        mass = [decision.mass for decision in self._decided if decision.mass is not None]
        return Substitutions(np.sum(slots, axis=0), np.sum(mass, axis=0)) if slots else None

    def apply(
        self,
        layer: int,
        x_TD: torch.Tensor,
        ids_TK: torch.Tensor,
        weights_TK: torch.Tensor,
        residual_TD: torch.Tensor,
        logits_TE: torch.Tensor | None = None,
    ) -> torch.Tensor:
        order = np.argsort(-weights_TK.numpy(), axis=1, kind="stable")
        routing = Routing(
            layer=layer,
            ids=np.take_along_axis(ids_TK.numpy(), order, 1),
            weights=np.take_along_axis(weights_TK.numpy(), order, 1),
            logits=None if logits_TE is None else logits_TE.numpy(),
            token_ids=self._token_ids,
        )
        lookahead = None
        if self._lookahead is not None and self.cache.wants_lookahead(layer):
            lookahead = self._lookahead(layer, x_TD).numpy()
        decision = self.cache.route(routing, lookahead)
        if decision is not None:
            self._decided.append(decision)
            ids_TK = torch.from_numpy(np.ascontiguousarray(decision.ids, dtype=np.int32))
            weights_TK = torch.from_numpy(np.ascontiguousarray(decision.weights, dtype=np.float32))
        return self._resident.apply(layer, x_TD, ids_TK, weights_TK, residual_TD)

    def stats(self) -> ExpertStats:
        return self.cache.stats()

    def check_integrity(self) -> None:
        self.cache.check_integrity()

    def close(self) -> None:
        self._resident.close()
