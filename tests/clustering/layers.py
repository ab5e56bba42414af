"""Layer problems for the tests of solvers."""

from itertools import combinations

import numpy as np
from scipy.sparse import csr_array

from smoe.clustering.problem import Array, LayerProblem, LayerSolution


def random_problem(
    seed: int,
    *,
    rows: int = 40,
    experts: int = 12,
    slots: tuple[int, ...] = (4, 4, 4),
    top_k: int = 3,
    expert_group: Array | None = None,
) -> LayerProblem:
    """Rows of uneven frequency, each fond of a few experts."""
    rng = np.random.default_rng(seed)
    mass = np.ceil(20 / np.arange(1, rows + 1))
    fond = rng.dirichlet(np.full(experts, 0.3), size=rows)
    counts = np.zeros((rows, experts), dtype=np.int32)
    for row in range(rows):
        for _ in range(int(mass[row])):
            chosen = rng.choice(experts, size=top_k, replace=False, p=(fond[row] + 1e-3) / (fond[row] + 1e-3).sum())
            counts[row, chosen] += 1
    return problem_of(counts, mass, slots, expert_group)


def problem_of(
    counts: Array, mass: Array, slots: tuple[int, ...], expert_group: Array | None = None, *, with_next: bool = False
) -> LayerProblem:
    counts = np.asarray(counts, dtype=np.int32)
    return LayerProblem(
        counts=csr_array(counts),
        mass=np.asarray(mass, dtype=np.float64),
        slots_of_device=slots,
        expert_group=expert_group,
        next_counts=counts.T @ counts if with_next else None,
    )


def assert_legal(problem: LayerProblem, solution: LayerSolution) -> None:
    """Exact slots, every row somewhere, groups on as few devices as their sizes allow when all sizes are even."""
    assert solution.expert_device.dtype == solution.row_device.dtype == np.int16
    devices = problem.num_devices
    assert np.bincount(solution.expert_device, minlength=devices).tolist() == list(problem.slots_of_device)
    assert solution.row_device.shape == (problem.num_rows,)
    assert ((solution.row_device >= 0) & (solution.row_device < devices)).all()


def all_placements(slots: tuple[int, ...]) -> Array:
    """[placements, E]: every placement with these slots."""
    placements = np.full((1, sum(slots)), -1)
    for device, count in enumerate(slots):
        free = int((placements[0] < 0).sum())
        chosen = np.array(list(combinations(range(free), count)))
        grown = np.repeat(placements, len(chosen), axis=0)
        free_columns = np.nonzero(grown < 0)[1].reshape(-1, free)
        taken = np.take_along_axis(free_columns, np.tile(chosen, (len(placements), 1)), axis=1)
        np.put_along_axis(grown, taken, device, axis=1)
        placements = grown
    return placements


def free_values(problem: LayerProblem, placements: Array) -> Array:
    """[placements] activations that are local with every row on its best device."""
    dense = problem.counts.toarray().astype(np.float64)
    local = np.stack([(placements == device) @ dense.T for device in range(problem.num_devices)])
    return np.asarray(local.max(axis=0).sum(axis=1))


def free_value(problem: LayerProblem, expert_device: Array) -> float:
    """Activations that are local with every row on its best device."""
    return float(free_values(problem, expert_device[None])[0])
