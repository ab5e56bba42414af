"""HostMemory: experts in memory of the host, all or some, as they lie in slots. What a HostStore copies from."""

import threading
from collections.abc import Callable, Sequence

import numpy as np
import torch

from smoe.kernels import ExpertTable, ExpertTensors
from smoe.models.bank import expert_table
from smoe.models.spec import MoESpec
from smoe.offload.arena import Arena
from smoe.offload.cache import Residency
from smoe.offload.policies.catalog import Geometry
from smoe.offload.policies.protocols import Array
from smoe.offload.policies.spec import parse_policies
from smoe.offload.shelf import Shelf
from smoe.offload.slots import View

EVICTION = "evict=lru"


class HostMemory:
    """Slots of the host, given to the experts used last. Also the InPlace (smoe.offload.in_place) of what it keeps.

    The thread that computes holds experts, that of a store fills slots; every method may be called from any thread.
    A pinned view's slot keeps its contents; one in flight or pinned is never a victim.
    """

    def __init__(self, shelf: Shelf, num_slots: int, *, poison: bool = False) -> None:
        """`num_slots` over all layers, at least one a layer. With `poison`, slots that hold nothing are NaN."""
        spec = shelf.spec
        layers = spec.moe_layers
        router = spec.moe(layers[0]).router
        geometry = Geometry(layers=layers, num_experts=router.num_experts, top_k=router.top_k)
        self.arena = Arena(num_slots, shelf.slot_bytes, poison=poison)
        self._eviction = parse_policies(EVICTION).build(geometry).eviction
        self._residency = Residency(num_slots, layers, self._eviction, floor=num_slots // len(layers))
        self._lock = threading.Lock()
        self._held: list[View] = []
        self.on_free: Callable[[], object] = _nothing
        """Called, on any thread, when a slot that was in use may be had again."""
        self._expert2slot = {i: np.full(spec.moe(i).router.num_experts, -1, dtype=np.int32) for i in layers}
        by_geometry: dict[MoESpec, ExpertTable] = {}
        self._tables: dict[int, ExpertTable] = {}
        for layer in layers:
            moe_spec = spec.moe(layer)
            if moe_spec not in by_geometry:
                by_geometry[moe_spec] = expert_table(moe_spec, spec.hidden, num_slots)
            self._tables[layer] = by_geometry[moe_spec]

    @property
    def peak_bytes(self) -> int:
        with self._lock:
            return self._residency.peak_used * self.arena.slot_bytes

    def try_pin(self, layer: int, expert: int) -> View | None:
        """A pinned view of the expert if it is here, which counts as a use."""
        with self._lock:
            views = self._pin(layer, [expert])
            return views[0] if views else None

    def try_reserve(self, layer: int, expert: int) -> View | None:
        """A slot for an expert that is not here. None while all of them are in use, or if it is on its way already."""
        with self._lock:
            if self._residency.holds((layer, expert)):
                return None
            view = self._residency.try_reserve(layer, expert)
            if view is not None:
                self.arena.poison(view.slot)
            return view

    def filled(self, view: View, tensors: ExpertTensors) -> None:
        """The expert lies in its reserved slot, which is pinned from here on."""
        with self._lock:
            self._residency.commit(view)
            self._tables[view.layer].set(view.slot, tensors)
            self._expert2slot[view.layer][view.expert] = view.slot

    def failed(self, view: View) -> None:
        """A reserved slot will not be filled: it is free."""
        with self._lock:
            self._residency.fail(view)
            self.arena.poison(view.slot)
        self.on_free()

    def unpin(self, view: View) -> None:
        with self._lock:
            self._residency.unpin(view)
        self.on_free()

    def slot(self, view: View) -> torch.Tensor:
        """uint8 view of the slot."""
        return self.arena.tensor(view.slot)

    def hold(self, layer: int, experts: Sequence[int]) -> frozenset[int]:
        with self._lock:
            views = self._pin(layer, experts)
        self._held += views
        return frozenset(view.expert for view in views)

    def release(self) -> None:
        with self._lock:
            for view in self._held:
                self._residency.unpin(view)
        if self._held:
            self._held.clear()
            self.on_free()

    def table(self, layer: int) -> ExpertTable:
        return self._tables[layer]

    def expert2slot(self, layer: int) -> Array:
        return self._expert2slot[layer]

    def check_integrity(self) -> None:
        """Raises RuntimeError unless the slots are accounted for, and every expert is where its table says."""
        with self._lock:
            self._residency.check_idle()
            for layer, expert2slot in self._expert2slot.items():
                if any(expert2slot[expert] != slot for expert, slot in self._residency.resident(layer).items()):
                    raise RuntimeError(f"host expert slots of layer {layer} differ from the residency")

    def _pin(self, layer: int, experts: Sequence[int]) -> list[View]:
        views = self._residency.pin(layer, experts)
        if views:
            self._eviction.touch(layer, [view.expert for view in views])
        return views

    def close(self) -> None:
        self._tables.clear()
        self.arena.close()


def _nothing() -> None:
    return
