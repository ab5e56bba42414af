"""What the solvers that others use share here: legal counts, the hard load limit, and the rows."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from smoe.clustering.incumbent import Incumbent
from smoe.clustering.problem import Array, Balance, LayerProblem, LayerSolution
from smoe.clustering.refine import SwapSearch
from smoe.clustering.units import Units, units_of

Candidates = Callable[[LayerProblem, Units, np.random.Generator], list[Array]]


@dataclass(frozen=True, slots=True)
class Baseline:
    """`candidates` gives legal placements [U]; those above the load limit are made to keep it by the swaps that cost
    least, and the best of them is the answer. So all methods can be compared at equal balance."""

    name: str
    candidates: Candidates

    def solve(self, problem: LayerProblem, balance: Balance, seed: int) -> LayerSolution:
        units = units_of(problem)
        best = Incumbent(problem, units, balance)
        search = SwapSearch(units, limit=best.limit)
        placements = self.candidates(problem, units, np.random.default_rng(seed))
        for device in placements:
            search.start(device)
            search.keep_limit()
            best.offer(search.device)
            best.end_round()
        return best.solution()
