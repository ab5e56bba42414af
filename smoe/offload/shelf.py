"""What the experts of a checkpoint need of a slot, and how bytes that have arrived become tensors."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

import torch

from smoe.core.expert_memory import ExpertMemory
from smoe.core.pages import whole_pages
from smoe.kernels import ExpertTensors
from smoe.models.loading import ExpertSource
from smoe.models.loading.arena import carve
from smoe.models.residual import room
from smoe.models.spec import DecoderSpec
from smoe.offload.layout import SlotLayout, plan_layout

STAGING_SLOTS = 2
"""One is read into while the other is converted."""


class Shelf:
    """`slot_bytes` holds any expert of the model. An expert whose tensors are not its bytes on disk as they are
    (another dtype or layout, or bytes not aligned to their item size) is read into one of STAGING_SLOTS pieces of
    memory first; `staging_bytes` is all of them, 0 when no expert needs it.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        source: Callable[[int, int], ExpertSource],
        dtype: torch.dtype,
        *,
        held: Mapping[int, Sequence[int]] | None = None,
        share: Fraction = Fraction(1),
    ) -> None:
        """For arithmetic in `dtype`; reads nothing.

        `held` are the experts that this device has of each MoE layer, equally many, by default all; what it may take of
        a budget is then its `share` of it. A slot holds those of other devices too.
        """
        self.spec, self.dtype, self.share = spec, dtype, share
        self._sources: dict[tuple[int, int], ExpertSource] = {}
        self._layouts: dict[tuple[int, int], SlotLayout] = {}
        self.slot_bytes = self.staging_bytes = 0
        for layer in spec.moe_layers:
            here = None if held is None else frozenset(held[layer])
            for expert in range(spec.moe(layer).router.num_experts):
                found = source(layer, expert)
                layout = plan_layout(found.parts)
                if here is None or expert in here:
                    self._sources[layer, expert], self._layouts[layer, expert] = found, layout
                if _is_staged(found, dtype):
                    self.staging_bytes = max(self.staging_bytes, STAGING_SLOTS * layout.room)
                    self.slot_bytes = max(self.slot_bytes, whole_pages(found.assembled_nbytes(dtype)))
                else:
                    self.slot_bytes = max(self.slot_bytes, layout.room)

    @property
    def layouts(self) -> list[SlotLayout]:
        return list(self._layouts.values())

    @property
    def experts(self) -> list[tuple[int, int]]:
        """(layer, expert) of all that are here."""
        return list(self._layouts)

    @property
    def num_experts(self) -> int:
        """Of all layers together."""
        return len(self._layouts)

    def slots(self, memory: ExpertMemory, *, free_bytes: int, field: str = "expert_memory") -> int:
        """Slots over all layers that `memory`, or this device's share of it, buys; with staging they stay within a
        bound given in bytes. A fraction is of the experts here.

        Raises ConfigError below one slot a layer.
        """
        return self.slots_of(self.num_experts // len(self.spec.moe_layers), self.share, memory, free_bytes, field)

    def slots_of(self, held: int, share: Fraction, memory: ExpertMemory, free_bytes: int, field: str) -> int:
        """`slots` of a device that has `held` experts of each layer and that `share` of a budget."""
        if memory.kind in ("slots", "bytes"):
            memory = replace(memory, value=memory.value * share.numerator / share.denominator)
        return memory.slots(
            num_layers=len(self.spec.moe_layers),
            num_experts=held,
            slot_bytes=self.slot_bytes,
            fixed_bytes=self.staging_bytes,
            free_bytes=free_bytes,
            field=field,
        )

    def layout(self, layer: int, expert: int) -> SlotLayout:
        return self._layouts[layer, expert]

    def is_staged(self, layer: int, expert: int) -> bool:
        return _is_staged(self._sources[layer, expert], self.dtype)

    def view(self, layer: int, expert: int, slot: torch.Tensor) -> ExpertTensors:
        """Tensors over the bytes of an expert that is not staged, read into uint8 `slot` by its layout."""
        return self._sources[layer, expert].assemble(self._raw(layer, expert, slot), self.dtype)

    def convert(self, layer: int, expert: int, staging: torch.Tensor, slot: torch.Tensor) -> ExpertTensors:
        """Tensors in uint8 `slot` of an expert that was read into `staging` by its layout."""
        source = self._sources[layer, expert]
        out = carve(slot, source, self.dtype)
        assembled = source.assemble(self._raw(layer, expert, staging), self.dtype)
        for field in source.shapes():
            getattr(out, field).copy_(getattr(assembled, field))
        return out

    def _raw(self, layer: int, expert: int, memory: torch.Tensor) -> dict[str, torch.Tensor]:
        parts = self._layouts[layer, expert].parts
        return {name: memory[offset : offset + nbytes] for name, (offset, nbytes) in parts.items()}


class SlotForm(Shelf):
    """The experts of a shelf as a store delivers them that keeps them as they lie in slots: nothing is staged."""

    def __init__(self, below: Shelf) -> None:
        self.spec, self.dtype, self.share = below.spec, below.dtype, below.share
        self._below, self._sources = below, below._sources
        self.slot_bytes, self.staging_bytes = below.slot_bytes, 0
        self._layouts = {
            key: SlotLayout((), {}, whole_pages(self._sources[key].assembled_nbytes(self.dtype)))
            if below.is_staged(*key)
            else layout
            for key, layout in below._layouts.items()
        }

    def is_staged(self, layer: int, expert: int) -> bool:
        return False

    def view(self, layer: int, expert: int, slot: torch.Tensor) -> ExpertTensors:
        if self._below.is_staged(layer, expert):
            return carve(slot, self._sources[layer, expert], self.dtype)
        return self._below.view(layer, expert, slot)


class ResidualForm(Shelf):
    """The experts of a shelf as a ResidualStore delivers them, in slots with room for rebuilding them there."""

    def __init__(self, below: Shelf) -> None:
        self.spec, self.dtype, self.share = below.spec, below.dtype, below.share
        self._sources = below._sources
        self._layouts = {key: SlotLayout((), {}, room(source)) for key, source in self._sources.items()}
        self.slot_bytes, self.staging_bytes = max(layout.room for layout in self.layouts), 0

    def is_staged(self, layer: int, expert: int) -> bool:
        return False

    def view(self, layer: int, expert: int, slot: torch.Tensor) -> ExpertTensors:
        return carve(slot, self._sources[layer, expert], self.dtype)

    def source(self, layer: int, expert: int) -> ExpertSource:
        return self._sources[layer, expert]


def _is_staged(source: ExpertSource, dtype: torch.dtype) -> bool:
    return source.converts(dtype) or any(part.offset % part.dtype.itemsize for part in source.parts.values())
