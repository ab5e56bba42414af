"""The exact optimum of the programme, for small problems, by mixed-integer programming."""

from dataclasses import dataclass
from itertools import combinations, product
from math import comb, prod

import numpy as np
from scipy.sparse import coo_array, csr_array

from smoe.clustering.objective import load_limit
from smoe.clustering.problem import Array, Balance, LayerProblem, LayerSolution
from smoe.clustering.tokens import fine_of
from smoe.clustering.units import Units, units_of
from smoe.core.errors import ConfigError

MAX_CHOICES = 40_000

Constraint = tuple[csr_array, float | Array, float | Array]
"""A matrix of variables, and the lowest and highest of each of its rows."""


@dataclass(frozen=True, slots=True)
class Exact:
    """Unlike the others it raises ConfigError, for more than 40,000 choices: sets of experts that a device can hold,
    times rows. 12 experts on 3 devices are 495 sets."""

    name: str = "exact"

    def solve(self, problem: LayerProblem, balance: Balance, seed: int) -> LayerSolution:
        units = units_of(problem)
        of_kind = np.bincount(units.kind).tolist()
        columns = np.unique(units.slots, axis=1).T.tolist()
        num_sets = sum(prod(comb(n, k) for n, k in zip(of_kind, column, strict=True)) for column in columns)
        if num_sets * problem.num_rows > MAX_CHOICES:
            value = f"exact with {num_sets} sets of experts for {problem.num_rows} rows"
            raise ConfigError("solver", value, f"at most {MAX_CHOICES} choices of a set for a row")
        fine = fine_of(float(problem.counts.sum()), float(problem.mass.sum()), balance.theta)
        unit_device, row_device = _Programme(units).solve(fine, load_limit(problem, balance))
        return LayerSolution(expert_device=units.expert_device(unit_device), row_device=row_device)


class _Programme:
    """Variables: `used[s]`, set s of units is what some device holds; `row[r, s]`, row r goes to it (both binary);
    `over[s]`, tokens there above a device's share.

    Sets make many variables, but a relaxation so tight that few need a branch: unit by unit and device by device,
    the relaxation has every activation local.
    """

    def __init__(self, units: Units) -> None:
        self.units = units
        classes, self.class_of_device = np.unique(units.slots, axis=1, return_inverse=True)
        sets, self.class_of_set = [], []
        for index, slots in enumerate(classes.T):
            members = [combinations(np.flatnonzero(units.kind == kind), n) for kind, n in enumerate(slots)]
            for parts in product(*members):
                sets.append(np.bincount([unit for part in parts for unit in part], minlength=units.num_units))
                self.class_of_set.append(index)
        self.member = np.array(sets, dtype=np.float64)
        self.local = np.asarray(units.counts @ self.member.T)
        num_rows, num_sets = self.local.shape
        self._used = np.arange(num_sets)
        self._row = num_sets + np.arange(num_rows * num_sets).reshape(num_rows, num_sets)
        self._over = num_sets * (num_rows + 1) + np.arange(num_sets)
        self.num_variables = num_sets * (num_rows + 2)

    def solve(self, fine: float, limit: float | None) -> tuple[Array, Array]:
        """([U], [R] i16) devices."""
        constraints = self._constraints()
        cost = np.zeros(self.num_variables)
        if limit is not None:
            # First as little above the limit as can be, then the best of those.
            cost[self._used] = np.maximum(self.member @ self.units.load - limit, 0.0)
            least = float(cost @ self._minimise(cost, constraints))
            constraints.append((csr_array(cost[None]), -np.inf, least + 1e-6))
        cost = np.zeros(self.num_variables)
        cost[self._row] = -self.local
        # As much is missing below the shares as there is above them.
        cost[self._over] = 2.0 * fine
        found = self._minimise(cost, constraints)
        return self._devices(np.flatnonzero(found[self._used] > 0.5), found[self._row])

    def _devices(self, used: Array, row: Array) -> tuple[Array, Array]:
        unit_device = np.empty(self.units.num_units, dtype=np.int64)
        device_of_set = np.zeros(len(self.member), dtype=np.int16)
        of_class = np.array(self.class_of_set)
        for index in range(int(self.class_of_device.max()) + 1):
            devices = np.flatnonzero(self.class_of_device == index)
            for device, chosen in zip(devices, used[of_class[used] == index], strict=True):
                unit_device[self.member[chosen] > 0] = device
                device_of_set[chosen] = device
        return unit_device, device_of_set[row.argmax(axis=1)]

    def _constraints(self) -> list[Constraint]:
        used, row, mass = self._used, self._row, self.units.mass
        num_rows, num_sets = row.shape
        classes = np.arange(int(self.class_of_device.max()) + 1)
        of_class = (np.array(self.class_of_set) == classes[:, None]).astype(np.float64)
        share = float(mass.sum()) / self.units.num_devices
        every = np.tile(used, (num_rows, 1))
        tokens = self._sum(row.T, np.tile(mass, (num_sets, 1)))
        return [
            (self._sum(np.tile(used, (self.units.num_units, 1)), self.member.T), 1.0, 1.0),
            (self._sum(np.tile(used, (len(classes), 1)), of_class), *(np.bincount(self.class_of_device),) * 2),
            (self._sum(row, np.ones(row.shape)), 1.0, 1.0),
            (self._single(row.ravel()) - self._single(every.ravel()), -np.inf, 0.0),
            (tokens - share * self._single(used) - self._single(self._over), -np.inf, 0.0),
        ]

    def _sum(self, variables: Array, weight: Array) -> csr_array:
        """[n, variables] one row for the weighted sum of each row of `variables` [n, m]."""
        count, width = variables.shape
        coords = (np.repeat(np.arange(count), width), variables.ravel())
        return csr_array(coo_array((weight.ravel(), coords), shape=(count, self.num_variables)))

    def _single(self, variables: Array) -> csr_array:
        return self._sum(variables[:, None], np.ones((len(variables), 1)))

    def _minimise(self, cost: Array, constraints: list[Constraint]) -> Array:
        from scipy.optimize import Bounds, LinearConstraint, milp

        binary = np.ones(self.num_variables)
        binary[self._over] = 0.0
        upper = np.where(binary > 0, 1.0, np.inf)
        linear = [LinearConstraint(matrix, low, high) for matrix, low, high in constraints]
        options = {"mip_rel_gap": 1e-6}
        result = milp(cost, integrality=binary, bounds=Bounds(0.0, upper), constraints=linear, options=options)
        assert result.x is not None, result.message
        return np.asarray(result.x)
