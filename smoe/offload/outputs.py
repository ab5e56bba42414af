"""What experts compute, wherever they lie: each output in its own place, so that the order of computing is of no
consequence.

Shapes: T rows, D hidden, K experts a row.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from smoe.kernels import ExpertTable, ExpertTensors, moe, moe_pairs
from smoe.models.bank import RoutedRows, expert_table
from smoe.models.spec import DecoderSpec, MoESpec
from smoe.offload.arena import POISON_BYTE
from smoe.offload.in_place import InPlace
from smoe.offload.slots import View

Ids = npt.NDArray[np.int32]


class Outputs:
    """Of experts in slots, and in place. One thread calls."""

    def __init__(self, spec: DecoderSpec, num_slots: int, *, poison: bool) -> None:
        """With `poison`, outputs are NaN until they are computed."""
        self._num_experts = {layer: spec.moe(layer).router.num_experts for layer in spec.moe_layers}
        # Right for resident experts only: whoever reads it asks the residency first. -1, no choice, looks at the end.
        self._expert2slot = {layer: np.full(n + 1, -1, dtype=np.int32) for layer, n in self._num_experts.items()}
        by_geometry: dict[MoESpec, ExpertTable] = {}
        self._tables: dict[int, ExpertTable] = {}
        for layer in spec.moe_layers:
            moe_spec = spec.moe(layer)
            if moe_spec not in by_geometry:
                by_geometry[moe_spec] = expert_table(moe_spec, spec.hidden, num_slots)
            self._tables[layer] = by_geometry[moe_spec]
        self._poison, self._scratch = poison, torch.empty(0)

    def install(self, view: View, tensors: ExpertTensors) -> None:
        """The expert's weights lie in its slot."""
        self._tables[view.layer].set(view.slot, tensors)
        self._expert2slot[view.layer][view.expert] = view.slot

    def tensors(self, layer: int, slot: int) -> ExpertTensors:
        return self._tables[layer].tensors(slot)

    def slots(self, layer: int, ids: Ids) -> list[int]:
        """Of `ids`, all of which are resident; each once."""
        found: list[int] = np.unique(self._expert2slot[layer].take(ids[ids >= 0])).tolist()
        return found

    def fused(self, rows: RoutedRows, residual_TD: torch.Tensor) -> torch.Tensor:
        """The whole layer, of which all experts are resident."""
        layer, x_TD, ids_TK, weights_TK, _ = rows
        slots_TK = torch.from_numpy(self._expert2slot[layer].take(ids_TK.numpy()))
        return moe(x_TD, slots_TK, ids_TK, weights_TK, self._tables[layer], residual=residual_TD)

    def begin(self, x_TD: torch.Tensor, ids_TK: torch.Tensor) -> torch.Tensor:
        """pairs_TKD, f32, to be filled by the calls that follow: valid until the next `begin`."""
        shape = (*ids_TK.shape, x_TD.shape[1])
        wanted = shape[0] * shape[1] * shape[2]
        if self._scratch.numel() < wanted:
            self._scratch = torch.empty(wanted)
        pairs_TKD = self._scratch[:wanted].view(shape)
        if self._poison:
            pairs_TKD.view(torch.uint8).fill_(POISON_BYTE)
        return pairs_TKD

    def compute(self, x_TD: torch.Tensor, ids: Ids, views: Iterable[View], pairs_TKD: torch.Tensor) -> None:
        """Of the views' experts, all of one layer; at least one."""
        expert2slot = None
        for view in views:
            if expert2slot is None:
                layer = view.layer
                expert2slot = np.full(self._num_experts[layer] + 1, -1, dtype=np.int32)
            expert2slot[view.expert] = view.slot
        assert expert2slot is not None
        moe_pairs(x_TD, torch.from_numpy(expert2slot.take(ids)), self._tables[layer], pairs_TKD)

    def compute_in_place(
        self, place: InPlace, layer: int, x_TD: torch.Tensor, ids: Ids, experts: Sequence[int], pairs_TKD: torch.Tensor
    ) -> int:
        """Of experts that are held. Returns how many rows they had, over all of them."""
        expert2slot = np.full(self._num_experts[layer] + 1, -1, dtype=np.int32)
        expert2slot[experts] = place.expert2slot(layer)[experts]
        slots_TK = expert2slot.take(ids)
        moe_pairs(x_TD, torch.from_numpy(slots_TK), place.table(layer), pairs_TKD)
        return int((slots_TK >= 0).sum())

    def check(self, layer: int, resident: dict[int, int]) -> None:
        """Raises RuntimeError unless `resident` experts are taken to be in their slots."""
        if any(self._expert2slot[layer][expert] != slot for expert, slot in resident.items()):
            raise RuntimeError(f"expert slots of layer {layer} differ from the residency")

    def close(self) -> None:
        """Lets go of the slots."""
        self._tables.clear()
