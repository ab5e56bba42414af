"""METIS on the graph of experts that are active together (needs pymetis)."""

import numpy as np

from smoe.clustering.affinity import co_activation
from smoe.clustering.problem import Array, LayerProblem
from smoe.clustering.units import Units, nearest_placement

# Edge weights are whole numbers; METIS sums them in 32 bits.
HEAVIEST = 10_000


def metis(problem: LayerProblem, units: Units, rng: np.random.Generator) -> list[Array]:
    """Least cut into parts of the devices' sizes. Parts that METIS leaves uneven are made exact by the assignment that
    keeps most affinity."""
    affinity = co_activation(units)
    parts = _partition(affinity, units.slots.sum(axis=0) / units.num_units, int(rng.integers(1 << 30)))
    hot = units.one_hot(parts)
    wish = affinity @ hot
    # To stay is worth as much again as the best that a unit could move to.
    return [nearest_placement(units, wish + hot * wish.max(axis=1, initial=0.0)[:, None])]


def _partition(affinity: Array, share: Array, seed: int) -> Array:
    import pymetis

    if len(share) == 1:
        return np.zeros(len(affinity), dtype=np.int64)
    weights = np.ceil(affinity / max(float(affinity.max(initial=0.0)), 1e-300) * HEAVIEST).astype(np.int64)
    start = np.concatenate([[0], np.cumsum((weights > 0).sum(axis=1))])
    graph = pymetis.CSRAdjacency(start, np.nonzero(weights)[1])
    options = pymetis.Options(seed=seed, ufactor=1, ncuts=10, niter=50)
    _, parts = pymetis.part_graph(
        len(share), graph, eweights=weights[weights > 0], tpwgts=share.tolist(), recursive=False, options=options
    )
    return np.asarray(parts, dtype=np.int64)
