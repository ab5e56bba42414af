"""From scores of experts to the experts a prefetch plan names."""

import numpy as np

from smoe.offload.policies.protocols import Array, Key


def name_best(scores_TE: Array, layer: int, *, width: int, threshold: float) -> list[Key]:
    """Of each row at most the `width` highest scores that are above 0 and at least `threshold`; over rows an expert's
    highest score counts. Highest first, of equal ones the lowest expert."""
    scores_E = scores_TE[0]
    if len(scores_TE) > 1:
        chosen = np.argsort(-scores_TE, axis=1, kind="stable")[:, :width]
        scores_E = np.zeros(scores_TE.shape[1], dtype=scores_TE.dtype)
        np.maximum.at(scores_E, chosen, np.take_along_axis(scores_TE, chosen, axis=1))
        width = len(scores_E)
    order = np.argsort(-scores_E, kind="stable")[:width]
    named = scores_E[order]
    return [(layer, expert) for expert in order[(named > 0) & (named >= threshold)].tolist()]
