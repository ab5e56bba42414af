"""Utility as MoE-SpAc counts it: an integer per layer and expert that verification windows move (spec P3.1 a).

A window is one pass of a layer; the count of an expert is how many of its rows chose it, in the verification of a
draft or, sooner, in the draft itself. A state moves by at most one a window:

    d = count - state;  d >= b_up: up;  -d >= b_down: down;  else it holds
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from smoe.offload.policies.protocols import Array

MOST = 5
"""Kmax, the highest state; it and the boundaries are those that MoE-SpAc was released with."""
B_UP, B_DOWN = 5, 1
GAIN = 0.1


class Boundaries(Protocol):
    """How large a surprise must be to move a state."""

    def of(self, layer: int) -> tuple[int, int]:
        """b_up and b_down, both from 1 to MOST, for the layer's next window."""
        ...

    def observe(self, layer: int, surprises: Array) -> None:
        """`surprises` [E] are count - state of a window that has just moved the states. Mutates."""
        ...


class Fixed:
    def __init__(self, up: int = B_UP, down: int = B_DOWN) -> None:
        self._both = up, down

    def of(self, layer: int) -> tuple[int, int]:
        return self._both

    def observe(self, layer: int, surprises: Array) -> None:
        pass


class Calibrated:
    """Per layer, moving averages of what surprises upward and downward, rounded.

    A window counts once: the mean of its positive surprises goes into the one, that of its negative ones into the
    other; a window without any leaves that one alone. The averages begin at the released constants.
    """

    def __init__(self, gain: float = GAIN) -> None:
        self._gain = gain
        self._means: dict[int, tuple[float, float]] = {}

    def of(self, layer: int) -> tuple[int, int]:
        up, down = self._means.get(layer, (B_UP, B_DOWN))
        return _boundary(up), _boundary(down)

    def observe(self, layer: int, surprises: Array) -> None:
        up, down = self._means.get(layer, (float(B_UP), float(B_DOWN)))
        above, below = surprises[surprises > 0], -surprises[surprises < 0]
        if len(above):
            up += self._gain * (float(above.mean()) - up)
        if len(below):
            down += self._gain * (float(below.mean()) - down)
        self._means[layer] = up, down


class States:
    """All start at 0. `moves` counts the steps taken so far."""

    def __init__(self, layers: Sequence[int], num_experts: int, boundaries: Boundaries) -> None:
        self.moves = 0
        self._states = {layer: np.zeros(num_experts, np.int64) for layer in layers}
        self._boundaries = boundaries

    def of(self, layer: int) -> Array:
        """[E], from 0 to MOST: those before this window's counts until `move` was called. Not to be changed."""
        return self._states[layer]

    def move(self, layer: int, counts: Mapping[int, int]) -> None:
        """A window of `layer` has run; an expert without an entry counts 0."""
        states = self._states[layer]
        surprises = -states
        for expert, count in counts.items():
            surprises[expert] += count
        up, down = self._boundaries.of(layer)
        rise = (surprises >= up) & (states < MOST)
        fall = (surprises <= -down) & (states > 0)
        self._states[layer] = states + rise - fall
        self.moves += int(rise.sum() + fall.sum())
        self._boundaries.observe(layer, surprises)


def _boundary(mean: float) -> int:
    """Halves go up, where Python's round would go to the even neighbour."""
    return min(MOST, max(1, int(mean + 0.5)))
