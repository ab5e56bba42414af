"""The best placement so far, judged on all rows, and how it came about."""

import numpy as np

from smoe.clustering.objective import load_imbalance, load_limit, local_share, objective
from smoe.clustering.problem import Array, Balance, LayerProblem, LayerSolution
from smoe.clustering.refine import TOLERANCE
from smoe.clustering.row_trades import shake_rows
from smoe.clustering.tokens import assign_rows, fine_of, negligible
from smoe.clustering.units import Units, in_order

NEAR = 1.1


class Incumbent:
    """Takes only what is better: less load above the limit, then a lower objective.

    `limit` and `fine` are what a search for it goes by: activations of a device, and activations a token too many.
    With `row_kicks` it also shakes the rows of what comes near to the best.
    """

    def __init__(self, problem: LayerProblem, units: Units, balance: Balance) -> None:
        self.limit = load_limit(problem, balance)
        activations, tokens = float(problem.counts.sum()), float(problem.mass.sum())
        fine = fine_of(activations, tokens, balance.theta)
        self.fine = 0.0 if negligible(activations, tokens, fine) else fine
        self._problem, self._units, self._theta = problem, units, balance.theta
        self._best: LayerSolution | None = None
        self._key = (np.inf, np.inf)
        self._history: list[tuple[float, float, float]] = []
        self.device = in_order(units)
        self.row_kicks = 0

    def offer(self, device: Array) -> tuple[float, float]:
        """What is better has the smaller answer: load above the limit, and the objective."""
        solution = place(self._problem, self._units.expert_device(device), self._theta)
        key = (self._excess(device), objective(self._problem, solution, self._theta))
        if self.row_kicks and key < (self._key[0], NEAR * self._key[1]):
            solution = self._shaken(solution)
            key = (key[0], objective(self._problem, solution, self._theta))
        if key < self._key:
            self._key, self._best, self.device = key, solution, device
        return key

    def end_round(self) -> None:
        best = self.solution()
        imbalance = load_imbalance(self._problem, best.expert_device)
        self._history.append((self._key[1], local_share(self._problem, best), imbalance))

    def solution(self) -> LayerSolution:
        if self._best is None:
            self.offer(self.device)
        assert self._best is not None
        return LayerSolution(
            expert_device=self._best.expert_device, row_device=self._best.row_device, history=tuple(self._history)
        )

    def _shaken(self, solution: LayerSolution) -> LayerSolution:
        problem, rng = self._problem, np.random.default_rng(0)
        local = problem.local(solution.expert_device)
        rows = shake_rows(solution.row_device, local, problem.mass, self.fine, self.row_kicks, rng)
        return LayerSolution(expert_device=solution.expert_device, row_device=rows)

    def _excess(self, device: Array) -> float:
        if self.limit is None:
            return 0.0
        load = np.bincount(device, self._units.load, self._units.num_devices)
        return float(np.maximum(load - self.limit * (1 + TOLERANCE), 0.0).sum())


def place(problem: LayerProblem, expert_device: Array, theta: float) -> LayerSolution:
    """A solution of these experts' devices [E], with the rows assigned to suit."""
    fine = fine_of(float(problem.counts.sum()), float(problem.mass.sum()), theta)
    rows = assign_rows(problem.local(expert_device), problem.mass, fine)
    return LayerSolution(expert_device=np.asarray(expert_device, dtype=np.int16), row_device=rows)
