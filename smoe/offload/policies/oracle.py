"""Prefetch that knows the future as well as it is told to. Only a simulation can have it."""

from collections.abc import Sequence
from random import Random

from smoe.offload.policies.future import Future
from smoe.offload.policies.protocols import Array, Key, Routing


class Oracle:
    """Names what the next pass demands; each expert, with chance 1 - `accuracy`, is replaced by one that it does not.

    As wide as the demand, so accuracy is both precision and recall (as in the replays of spec P5). `observe` must hear
    of every pass, in the future's order.
    """

    needs_lookahead = False

    def __init__(self, future: Future, *, num_experts: int, accuracy: float = 1.0, seed: int = 0) -> None:
        self._future, self._accuracy = future, accuracy
        self._everyone = frozenset(range(num_experts))
        self._random = Random(seed)
        self._observed = 0
        self._last: Routing | None = None

    def observe(self, routing: Routing) -> None:
        self._future.check(self._observed, routing.layer)
        self._observed += 1
        self._last = routing

    def plan(self, routing: Routing, next_layer: int, lookahead_logits: Array | None) -> Sequence[Key]:
        following = self._observed + (routing is not self._last)
        experts = self._future.experts_of(following)
        if not experts:
            return ()
        named = [(next_layer, expert) for expert in experts]
        if self._accuracy == 1:
            return named
        chance, others = self._random.random, list[int]()
        left = len(self._everyone) - len(experts)
        for place in range(len(experts)):
            if left and chance() >= self._accuracy:
                others = others or sorted(self._everyone.difference(experts))
                named[place] = (next_layer, others.pop(self._random.randrange(left)))
                left -= 1
        return named
