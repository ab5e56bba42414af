"""How often each expert was chosen, by the routers of one decoder. Shapes: T rows, K choices, E experts, G devices."""

import threading
from collections.abc import Mapping

import torch

from smoe.core.stats import RoutingStats
from smoe.models.spec import DecoderSpec

Tensor = torch.Tensor

# A count costs more than a decode step of a small model can spare: choices of few rows are kept and counted together.
_FEW_ROWS = 64
_KEPT = 64


class RouteCounts:
    """One thread runs the model and notes; any may ask for `stats`."""

    def __init__(self, spec: DecoderSpec) -> None:
        self._counts = {
            layer: torch.zeros(spec.moe(layer).router.num_experts, dtype=torch.int64) for layer in spec.moe_layers
        }
        self._kept: dict[int, list[Tensor]] = {layer: [] for layer in spec.moe_layers}
        self._places: Mapping[int, Tensor] | None = None
        self._own = 0
        # Of the choices made while experts lay otherwise than now: the counts then, and what they came to.
        self._moved = {layer: torch.zeros_like(counts) for layer, counts in self._counts.items()}
        self._by_device = torch.zeros(1, dtype=torch.int64)
        self._lock = threading.Lock()

    def note(self, layer: int, ids_TK: Tensor) -> None:
        """`ids_TK`, integers in [0, E), are not written to afterwards."""
        with self._lock:
            kept = self._kept[layer]
            kept.append(ids_TK)
            if len(ids_TK) > _FEW_ROWS or len(kept) >= _KEPT:
                self._settle(layer)

    def use(self, places: Mapping[int, Tensor], *, own: int, size: int) -> None:
        """From now on expert e of a layer is computed by device `places[layer][e]`, i64 in [0, `size`), for rows here,
        on device `own`. Without, all experts are here."""
        with self._lock:
            if self._places is None:
                self._by_device = torch.zeros(size, dtype=torch.int64)
            self._by_device = self._devices()
            self._moved = {layer: counts.clone() for layer, counts in self._counts.items()}
            self._places, self._own = places, own

    def stats(self) -> RoutingStats:
        with self._lock:
            by_device = self._devices()
            return RoutingStats(
                loads=tuple(tuple(counts.tolist()) for counts in self._counts.values()),
                by_device=tuple(by_device.tolist()),
                local=int(by_device[self._own]),
            )

    def _devices(self) -> Tensor:
        """[G] choices by device so far."""
        total_G = self._by_device.clone()
        for layer, counts in self._counts.items():
            self._settle(layer)
            new_E = counts - self._moved[layer]
            places_E = torch.zeros_like(new_E) if self._places is None else self._places[layer]
            total_G.index_add_(0, places_E, new_E)
        return total_G

    def _settle(self, layer: int) -> None:
        kept = self._kept[layer]
        if kept:
            ids = torch.cat(kept).reshape(-1)
            kept.clear()
            self._counts[layer] += torch.bincount(ids, minlength=len(self._counts[layer])).cpu()
