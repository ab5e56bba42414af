"""Prefetch from route tables: by what the layer before chose, or by the token that goes in (spec P1's tables)."""

from collections.abc import Sequence

from smoe.offload.policies.protocols import Array, Key, Routing
from smoe.offload.policies.ranking import name_best
from smoe.offload.policies.tables import RouteTables


class FollowerPrefetch:
    """Names the experts that most often followed those just chosen; also from the last layer to the next forward,
    where a row is one sequence's (T = 1). A score is the chance to follow a choice, averaged over the row's choices.
    `learn`: from every pass seen."""

    needs_lookahead = False

    def __init__(self, tables: RouteTables, *, width: int, threshold: float = 0.0, learn: bool = True) -> None:
        self.tables, self._width, self._threshold, self._learn = tables, width, threshold, learn
        self._previous: Routing | None = None

    def plan(self, routing: Routing, next_layer: int, lookahead_logits: Array | None) -> Sequence[Key]:
        if len(routing.ids) > 1 and self.tables.index[next_layer] == 0:
            return ()
        scores = self.tables.next_scores(routing.layer, routing.ids)
        return name_best(scores, next_layer, width=self._width, threshold=self._threshold)

    def observe(self, routing: Routing) -> None:
        previous, self._previous = self._previous, routing
        if previous is None or not self._learn or len(previous.ids) != len(routing.ids):
            return
        before, now = self.tables.index[previous.layer], self.tables.index[routing.layer]
        following = now == before + 1 or (now == 0 and before == len(self.tables.layers) - 1 and len(routing.ids) == 1)
        if following:
            self.tables.learn_next(previous.layer, previous.ids, routing.ids)


class TokenPrefetch:
    """Names the experts that the rows' tokens went to most often in the next layer of this forward. A score is the
    share of the token's rows: its confidence. `learn`: from every pass seen."""

    needs_lookahead = False

    def __init__(self, tables: RouteTables, *, width: int, threshold: float = 0.0, learn: bool = True) -> None:
        self.tables, self._width, self._threshold, self._learn = tables, width, threshold, learn

    def plan(self, routing: Routing, next_layer: int, lookahead_logits: Array | None) -> Sequence[Key]:
        if routing.token_ids is None or self.tables.index[next_layer] == 0:
            return ()
        scores = self.tables.token_scores(next_layer, routing.token_ids)
        return name_best(scores, next_layer, width=self._width, threshold=self._threshold)

    def observe(self, routing: Routing) -> None:
        if self._learn and routing.token_ids is not None:
            self.tables.learn_tokens(routing.layer, routing.token_ids, routing.ids)
