"""The passes to come, for policies that only a simulation can have."""

from collections.abc import Iterable
from itertools import chain, pairwise

import numpy as np
import numpy.typing as npt

from smoe.offload.policies.protocols import Key

NEVER = np.iinfo(np.int32).max
"""The pass of the next use of what is not used again."""

BLOCK = 1024
"""Passes that are turned into lists together."""

Ints = npt.NDArray[np.integer]


class Future:
    """Every pass that a run will make, in order: `layers` [P], and `experts` [starts[P]], the distinct experts that
    pass p demands being `experts[starts[p]:starts[p + 1]]`. `first_uses` are the passes that first demand a key.
    Not changed by use: policies share one.
    """

    def __init__(self, layers: Ints, starts: Ints, experts: Ints) -> None:
        self.layers, self.starts = layers.astype(np.int32), starts.astype(np.int64)
        self.experts = experts.astype(np.int32)
        pass_of = np.repeat(np.arange(len(layers), dtype=np.int32), np.diff(self.starts))
        keys = self.layers[pass_of].astype(np.int64) << 32 | self.experts
        order = np.argsort(keys, kind="stable")
        again = keys[order][1:] == keys[order][:-1]
        self._next = np.full(len(keys), NEVER, dtype=np.int32)
        self._next[order[:-1][again]] = pass_of[order[1:][again]]
        firsts = order[np.concatenate(([True], ~again))] if len(keys) else order
        passes = pass_of[firsts]
        first_keys: list[Key] = list(zip(self.layers[passes].tolist(), self.experts[firsts].tolist(), strict=True))
        self.first_uses: dict[Key, int] = dict(zip(first_keys, passes.tolist(), strict=True))
        self._block = -1
        self._lists: list[tuple[int, list[int], list[int]]] = []

    @classmethod
    def of(cls, passes: Iterable[tuple[int, Iterable[int]]]) -> "Future":
        """From (layer, demanded experts) of each pass; repeated experts are taken once."""
        pairs = [(layer, sorted(set(experts))) for layer, experts in passes]
        layers = np.array([layer for layer, _ in pairs], dtype=np.int32)
        starts = np.cumsum([0, *(len(experts) for _, experts in pairs)])
        return cls(layers, starts, np.array(list(chain.from_iterable(e for _, e in pairs)), dtype=np.int32))

    def __len__(self) -> int:
        return len(self.layers)

    def experts_of(self, number: int) -> list[int]:
        """Demanded by pass `number`; none after the last."""
        return self._look(number)[1] if number < len(self.layers) else []

    def next_uses_of(self, number: int) -> list[int]:
        """Of each of `experts_of(number)`, the pass that demands it next after `number`, or NEVER."""
        return self._look(number)[2] if number < len(self.layers) else []

    def check(self, number: int, layer: int) -> None:
        """Raises RuntimeError unless pass `number` is one of `layer`: the run is not the one foreseen."""
        if number >= len(self.layers) or self._look(number)[0] != layer:
            foreseen = f"layer {self.layers[number]}" if number < len(self.layers) else "the end"
            raise RuntimeError(f"pass {number} is layer {layer}, foreseen was {foreseen}")

    def _look(self, number: int) -> tuple[int, list[int], list[int]]:
        """Layer, experts and their next uses, by plain lists: this is asked for every pass."""
        block, place = divmod(number, BLOCK)
        if block != self._block:
            first, last = block * BLOCK, min((block + 1) * BLOCK, len(self.layers))
            starts = (self.starts[first : last + 1] - self.starts[first]).tolist()
            among = slice(self.starts[first], self.starts[last])
            experts, uses = self.experts[among].tolist(), self._next[among].tolist()
            spans = [slice(a, b) for a, b in pairwise(starts)]
            layers = self.layers[first:last].tolist()
            self._lists = [(layer, experts[s], uses[s]) for layer, s in zip(layers, spans, strict=True)]
            self._block = block
        return self._lists[place]
