"""Gate look-ahead: the next layer's router, applied to this layer's input (residual streams change slowly).

Top-k is the fixed width of Eliseev and Mazur ("Fast inference of mixture-of-experts language models with offloading",
2023); down to a score threshold is SpecMD's dynamic width (spec P5), which spends what the link has to spare.
"""

from collections.abc import Sequence

import numpy as np

from smoe.offload.policies.protocols import Array, Key, Routing
from smoe.offload.policies.ranking import name_best


class GateLookahead:
    """Of each row, at most the `width` highest logits; of those, only scores of at least `threshold`.

    An expert's score in a row is its router probability over the row's highest, so the best has 1 and a threshold of
    0 leaves the width alone. Over rows the highest score counts. In order of score; of equal ones, of expert.
    """

    needs_lookahead = True

    def __init__(self, *, width: int, threshold: float = 0.0) -> None:
        self._width, self._threshold = width, threshold

    def plan(self, routing: Routing, next_layer: int, lookahead_logits: Array | None) -> Sequence[Key]:
        if lookahead_logits is None:
            return ()
        logits = lookahead_logits.astype(np.float32)
        logits = logits[np.isfinite(logits).all(axis=1)]
        if not len(logits):
            return ()
        scores = np.exp(logits - logits.max(axis=1, keepdims=True))
        return name_best(scores, next_layer, width=self._width, threshold=self._threshold)

    def observe(self, routing: Routing) -> None:
        pass
