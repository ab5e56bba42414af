"""Which data-parallel group gets a request: the one that it suits best, in turns that keep the groups even."""

from collections.abc import Callable, Sequence

Affinity = Callable[[Sequence[int]], Sequence[float]]
"""By group, how well it suits a request with these prompt tokens."""


class Rotation:
    """A group that has been chosen is left out until all have been: each turn of `num_groups` requests reaches every
    group once, whatever the scores."""

    def __init__(self, num_groups: int) -> None:
        self._all = tuple(range(num_groups))
        self._left = set(self._all)

    def choose(self, scores: Sequence[float]) -> int:
        """The group with the highest score of those left in this turn, the lowest of equals."""
        group = max(sorted(self._left), key=lambda left: scores[left])
        self._left.discard(group)
        if not self._left:
            self._left = set(self._all)
        return group
