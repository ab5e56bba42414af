"""How much two experts are used by the same rows."""

import numpy as np
from scipy.sparse import csr_array, diags_array

from smoe.clustering.problem import Array
from smoe.clustering.units import Units


def co_activation(units: Units) -> Array:
    """[U, U] f64, 0 on the diagonal: sum over rows of count_a count_b / mass, the times that a and b are expected in
    one token when its row is known. Exact where a row is a set of experts."""
    counts = csr_array(units.counts)
    weighed = diags_array(1.0 / np.maximum(units.mass, 1.0)) @ counts
    affinity = np.asarray((counts.T @ weighed).toarray(), dtype=np.float64)
    np.fill_diagonal(affinity, 0.0)
    return affinity
