"""Residencies that evict what was used least lately."""

from smoe.offload.cache import Residency
from smoe.offload.policies.lru import LRU
from smoe.offload.policies.protocols import Reason


def make(num_slots=3, layers=(0,), floor=None):
    return Residency(num_slots, layers, LRU(), floor=num_slots // len(layers) if floor is None else floor)


def load(residency, layer, expert):
    residency.ask(layer, [expert])
    view = residency.try_reserve(layer, expert)
    assert view is not None
    residency.commit(view)
    residency.unpin(view)
    return view


def prefetch(residency, layer, expert):
    view = residency.try_reserve(layer, expert, Reason.PREFETCH)
    assert view is not None
    return view
