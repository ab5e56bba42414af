"""Recurrent states of sequences (Qwen3-Next), which unlike KV rows cannot be written twice: kept and put back."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from smoe.core.step import SpanPlan
from smoe.kernels import GatedDelta
from smoe.models.kv import KVCache, LayerCache

Saved = list[tuple[torch.Tensor, torch.Tensor]]
"""By layer: tails and states of some sequences, in their order."""


class RecurrentStates:
    """Of the decoder layers `layers`; without any, every method does nothing."""

    def __init__(self, kv: KVCache, layers: Sequence[int]) -> None:
        self._caches = [kv.layers[layer] for layer in layers]

    def __bool__(self) -> bool:
        return bool(self._caches)

    def save(self, spans: Sequence[SpanPlan]) -> Saved:
        slots = [span.state_slot for span in spans]
        return [(cache.first[slots], cache.second[slots]) for cache in self._caches]

    def restore(self, spans: Sequence[SpanPlan], saved: Saved) -> None:
        """What `save` gave for the same spans."""
        for place in range(len(spans)):
            self.restore_one(spans, saved, place)

    def restore_one(self, spans: Sequence[SpanPlan], saved: Saved, place: int) -> None:
        slot = spans[place].state_slot
        for cache, (first, second) in zip(self._caches, saved, strict=True):
            cache.first[slot] = first[place]
            cache.second[slot] = second[place]


@dataclass(frozen=True, slots=True)
class _Kept:
    net: GatedDelta
    cache: LayerCache
    x_TX: torch.Tensor


class Replay:
    """What the recurrent layers of one forward were given for some of its rows, to go only part of the way again."""

    def __init__(self, counts: Sequence[int], wanted: Sequence[int]) -> None:
        """`counts` are the rows of each span, `wanted` the spans that may have to."""
        self._firsts = [sum(counts[:span]) for span in range(len(counts))]
        self._rows = [row for span in wanted for row in range(self._firsts[span], self._firsts[span] + counts[span])]
        self._whole = len(self._rows) == sum(counts)
        self._place = {span: sum(counts[before] for before in wanted if before < span) for span in wanted}
        self._kept: list[_Kept] = []

    def sink(self, net: GatedDelta, x_TX: torch.Tensor, cache: LayerCache) -> None:
        """A DeltaSink (smoe.models.batch)."""
        rows = x_TX if self._whole else x_TX[self._rows]
        self._kept.append(_Kept(net, cache, rows))

    def run(self, span: int, count: int, past: int, slot: int) -> None:
        """The state in `slot`, as it was before the forward, goes the first `count` rows of the span."""
        first = self._place[span]
        for kept in self._kept:
            kept.net(kept.x_TX[first : first + count], [(0, count, past, slot)], kept.cache.first, kept.cache.second)
