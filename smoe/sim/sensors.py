"""How much the counts of verification windows say about the next window, and how restless what is made of them is.

Shapes: W windows, L layers, E experts. Whatever is said after window w is compared with window w + 1.
"""

import numpy as np

from smoe.core.route_trace import Array
from smoe.offload.policies.balance import Limits, Objective, Sides, choose_threshold
from smoe.offload.policies.utility_states import MOST, Boundaries, States


def states_after(counts_WLE: Array, boundaries: Boundaries) -> Array:
    """[W, L, E] utility after each window."""
    windows, layers, experts = counts_WLE.shape
    states = States(range(layers), experts, boundaries)
    after = np.empty_like(counts_WLE)
    for window in range(windows):
        for layer in range(layers):
            counts = counts_WLE[window, layer]
            used = np.flatnonzero(counts)
            states.move(layer, dict(zip(used.tolist(), counts[used].tolist(), strict=True)))
            after[window, layer] = states.of(layer)
    return after


def changes(values_WLE: Array) -> float:
    """Experts, over all layers, whose value changes from one window to the next: their mean."""
    return float((values_WLE[1:] != values_WLE[:-1]).sum(axis=(1, 2)).mean())


def mutual_information(x: Array, y: Array) -> float:
    """Bits that whole numbers x tell of y, both 0 or above and of one shape, over all their places."""
    width = int(y.max()) + 1
    joint = np.bincount((x * width + y).ravel(), minlength=(int(x.max()) + 1) * width).reshape(-1, width) / x.size
    apart = joint.sum(1, keepdims=True) * joint.sum(0, keepdims=True)
    there = joint > 0
    return float((joint[there] * np.log2(joint[there] / apart[there])).sum())


def right(told: Array, truth: Array) -> dict[str, float]:
    """Of two classes, both bool: the share of places told right; what always telling the commoner class would have
    (`base`); of what is true, the share told (`recall`), and of what is told the share that is true (`precision`)."""
    common = int((told & truth).sum())
    return {
        "accuracy": float((told == truth).mean()),
        "base": float(max(truth.mean(), 1 - truth.mean())),
        "recall": common / max(1, int(truth.sum())),
        "precision": common / max(1, int(told.sum())),
    }


def hot_by_balance(states_WLE: Array, counts_WLE: Array, sides: Sides, objective: Objective = "makespan") -> Array:
    """[W, L, E] bool: who is hot by the threshold that balances these counts, wherever experts lie."""
    hot = np.empty(states_WLE.shape, bool)
    for window, layer in np.ndindex(states_WLE.shape[:2]):
        states, counts = states_WLE[window, layer], counts_WLE[window, layer]
        used = np.flatnonzero(counts)
        of = dict(zip(used.tolist(), counts[used].tolist(), strict=True))
        tau, _ = choose_threshold(states.tolist(), of, (), sides, Limits(), objective)
        hot[window, layer] = states >= tau
    return hot


def hot_in_hindsight(counts_WLE: Array, sides: Sides, objective: Objective = "makespan") -> Array:
    """Who the balance makes hot in a window if it goes by the counts of that very window, up to MOST."""
    return hot_by_balance(np.minimum(counts_WLE, MOST), counts_WLE, sides, objective)
