"""Gate look-ahead: the next layer's router, applied to this layer's input (residual streams change slowly).

Top-k is the fixed width of Eliseev and Mazur ("Fast inference of mixture-of-experts language models with offloading",
2023); down to a score threshold is SpecMD's dynamic width (spec P5), which spends what the link has to spare.
"""

import math
from collections.abc import Sequence

import numpy as np

from smoe.offload.policies.protocols import Array, Key, Routing
from smoe.offload.policies.ranking import name_best

EXP_LIMIT = 80.0
"""Beyond this distance of logits scores are equal; exp of it is still a float32."""


class GateLookahead:
    """Of each row, the `width` highest logits; with a `threshold`, of those only the scores that reach it.

    An expert's score in a row is its router probability over that of the row's `top_k`-th expert. So the experts that
    the row would choose have 1 or more, and a threshold below 1 also names those that came close: more the flatter
    the row is. Over rows the highest score counts. In order of score; of equal ones, of expert.
    """

    needs_lookahead = True

    def __init__(self, *, top_k: int, width: int, threshold: float = 0.0) -> None:
        self._top_k, self._width, self._threshold = top_k, width, threshold

    def plan(self, routing: Routing, next_layer: int, lookahead_logits: Array | None) -> Sequence[Key]:
        if lookahead_logits is None:
            return ()
        if len(lookahead_logits) == 1:
            return self._plan_one(lookahead_logits[0].astype(np.float32), next_layer)
        logits = lookahead_logits.astype(np.float32)
        logits = logits[np.isfinite(logits).all(axis=1)]
        if not len(logits):
            return ()
        last = np.partition(logits, -self._top_k, axis=1)[:, -self._top_k, None]
        scores = np.exp(np.minimum(logits - last, EXP_LIMIT))
        return name_best(scores, next_layer, width=self._width, threshold=self._threshold)

    def observe(self, routing: Routing) -> None:
        pass

    def _plan_one(self, logits_E: Array, next_layer: int) -> list[Key]:
        """`plan` for one row, which is what decoding asks for all the time."""
        order = np.argsort(-logits_E, kind="stable")
        logits = logits_E[order].tolist()
        if not (math.isfinite(logits[0]) and math.isfinite(logits[-1])):  # NaN sorts last
            return []
        # The score exp(logit - last) is above zero and reaches the threshold.
        least = logits[self._top_k - 1] + (math.log(self._threshold) if self._threshold else -EXP_LIMIT)
        best = zip(order[: self._width].tolist(), logits, strict=False)
        return [(next_layer, expert) for expert, logit in best if logit >= least]
