"""What a solution is worth: the 0-1 programme's objective, the local share, and the two kinds of imbalance."""

import numpy as np

from smoe.clustering.problem import Array, Balance, LayerProblem, LayerSolution


def objective(problem: LayerProblem, solution: LayerSolution, theta: float) -> float:
    """theta * sum_i |tokens_i - S / G| + (1 - theta) * remote, in token occurrences; lower is better.

    `remote` weighs a token's activations by their number, so a token of which half are remote counts half.
    """
    tokens = np.bincount(solution.row_device, problem.mass, problem.num_devices)
    total = float(problem.mass.sum())
    remote = total * (1.0 - local_share(problem, solution))
    return theta * float(np.abs(tokens - total / problem.num_devices).sum()) + (1.0 - theta) * remote


def local_share(problem: LayerProblem, solution: LayerSolution) -> float:
    """Share of the activations whose expert is on the device of the row; 1.0 if there are none."""
    local = problem.local(solution.expert_device)
    total = float(local.sum())
    chosen = float(local[np.arange(problem.num_rows), solution.row_device].sum())
    return chosen / total if total else 1.0


def load_imbalance(problem: LayerProblem, expert_device: Array) -> float:
    """Activations of the busiest device over the mean; 1.0 if there are none."""
    return _imbalance(np.bincount(expert_device, problem.expert_load, problem.num_devices))


def token_imbalance(problem: LayerProblem, row_device: Array) -> float:
    """Tokens of the fullest device over the mean; 1.0 if there are none."""
    return _imbalance(np.bincount(row_device, problem.mass, problem.num_devices))


def _imbalance(load: Array) -> float:
    mean = float(load.mean())
    return float(load.max()) / mean if mean else 1.0


def load_limit(problem: LayerProblem, balance: Balance) -> float | None:
    """The most activations a device may get, from `max_load`."""
    if balance.max_load is None:
        return None
    return balance.max_load * float(problem.counts.sum()) / problem.num_devices
