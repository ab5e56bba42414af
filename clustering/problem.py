"""One layer's co-clustering problem, and what a solver answers: the 0-1 programme of Speculative MoE.

Axes: R rows (a row is a token id, or one token's pass where ids are not known), E experts, G devices.
"""

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerProblem:
    """`counts` [R, E]: how often a row activated an expert. `mass` [R] f64: how often the row occurred (a_j).

    `slots_of_device` [G] experts are placed on each device; they sum to E. `expert_group` [E], where a router is
    limited to groups, keeps each group on as few devices as can hold it, alone or beside other whole groups.
    `next_counts` [E, E], if given: tokens of which this layer chose i and the next one j, for methods that go by it.
    `row_token` [R] i32, if given: the token id of each row, -1 for a row that stands for a set of experts.
    """

    counts: csr_array
    mass: Array
    slots_of_device: tuple[int, ...]
    expert_group: Array | None = None
    next_counts: Array | None = None
    row_token: Array | None = None

    @property
    def num_rows(self) -> int:
        return int(self.counts.shape[0])

    @property
    def num_experts(self) -> int:
        return int(self.counts.shape[1])

    @property
    def num_devices(self) -> int:
        return len(self.slots_of_device)

    @property
    def expert_load(self) -> Array:
        """[E] f64 activations."""
        return np.asarray(self.counts.sum(axis=0), dtype=np.float64).ravel()

    def local(self, expert_device: Array) -> Array:
        """[R, G] f64: a row's activations on each device when its experts are placed so."""
        one_hot = np.zeros((self.num_experts, self.num_devices))
        one_hot[np.arange(self.num_experts), expert_device] = 1.0
        return np.asarray(self.counts @ one_hot)


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """What a solution may cost in balance.

    `theta` in (0, 1) weighs token imbalance against remote activations, as in the programme. From 1/3 on an even number
    of tokens comes before any locality; at run time equal chunks even them out for less, so the default is small.
    `max_load` is a hard limit on expert load: the busiest device's activations over the mean; None is no limit. A limit
    that no placement can keep is kept as nearly as the solver finds.
    """

    theta: float = 0.001
    max_load: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerSolution:
    """`expert_device` [E] i16 with exactly `slots_of_device` experts a device; `row_device` [R] i16.

    `history` has one entry a round of an iterative solver: (objective, local share, load imbalance) of the best so far.
    """

    expert_device: Array
    row_device: Array
    history: tuple[tuple[float, float, float], ...] = field(default=())


class Solver(Protocol):
    """Groups a layer's experts. `name` is what reports and `--solver` call it."""

    @property
    def name(self) -> str: ...

    def solve(self, problem: LayerProblem, balance: Balance, seed: int) -> LayerSolution:
        """Equal arguments give byte-equal answers, on any number of threads. Raises nothing for a valid problem."""
        ...
