"""EmulatedBank: what an offloaded bank would compute, with every expert in memory."""

import torch

from smoe.bench.quality.ideal import IdealCache
from smoe.core.stats import ExpertStats
from smoe.models.bank import Lookahead, ResidentBank, RoutedRows, Substitutions
from smoe.offload.routings import Routings


class EmulatedBank:
    """Decisions by `cache`, arithmetic by `resident`: the bits of an OffloadedBank that decides the same."""

    def __init__(self, resident: ResidentBank, cache: IdealCache) -> None:
        self._resident, self.cache, self._routings = resident, cache, Routings(cache)

    @property
    def needs_logits(self) -> bool:
        return self.cache.needs_logits

    def use_lookahead(self, lookahead: Lookahead) -> None:
        self._routings.lookahead = lookahead

    def begin_forward(self, token_ids_T: torch.Tensor) -> None:
        self._routings.begin_forward(token_ids_T)
        self.cache.begin_forward()

    def substitutions(self) -> Substitutions | None:
        return self._routings.substitutions

    def apply(self, rows: RoutedRows, residual_TD: torch.Tensor) -> torch.Tensor:
        decision = self.cache.route(*self._routings.of(rows))
        if decision is not None:
            rows = self._routings.replace(rows, decision)
        return self._resident.apply(rows, residual_TD)

    def stats(self) -> ExpertStats:
        return self.cache.stats()

    def check_integrity(self) -> None:
        self.cache.check_integrity()

    def close(self) -> None:
        self._resident.close()
