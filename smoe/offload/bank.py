"""OffloadedBank: an ExpertBank whose experts live in files and visit a bounded number of slots.

Shapes: T rows, D hidden, K experts a row.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from smoe.core.stats import ExpertStats
from smoe.kernels import ExpertTable, moe, moe_combine, moe_pairs
from smoe.models.bank import expert_table
from smoe.models.spec import MoESpec
from smoe.offload.arena import POISON_BYTE, Arena
from smoe.offload.cache import Residency, View
from smoe.offload.layer_pass import LayerPass
from smoe.offload.policies.eviction import Eviction
from smoe.offload.shelf import Shelf
from smoe.offload.store import Store
from smoe.offload.transfer import Transfers

Ids = npt.NDArray[np.int32]
SMALL_IDS = 512
"""Up to here a set of Python integers is the fastest way to distinct ids; one decoding row has ten or so."""


class OffloadedBank:
    """Bit-equal to ResidentBank for every number of slots: each expert's output goes to its own place of a buffer,
    which is summed in ascending expert id whatever the order of arrival.

    Misses are waited for, while the hits are computed. A StoreError ends one `apply`; the next one works.
    """

    def __init__(
        self, shelf: Shelf, store: Store, eviction: Eviction, *, num_slots: int, floor: int, poison: bool = False
    ) -> None:
        """`num_slots` over all layers, of which `floor` >= 1 are safe for each. Closes `store` when closed.

        `poison` fills slots and outputs that hold nothing yet with NaN.
        """
        spec = shelf.spec
        self._fixed_bytes = shelf.staging_bytes
        self._arena = Arena(num_slots, shelf.slot_bytes, poison=poison)
        self._residency = Residency(num_slots, spec.moe_layers, eviction, floor=floor)
        self._store, self._transfers = store, Transfers(shelf, store, self._arena)
        self._num_experts = {layer: spec.moe(layer).router.num_experts for layer in spec.moe_layers}
        # Right for resident experts only: whoever reads it asks the residency first.
        self._expert2slot = {layer: np.full(n, -1, dtype=np.int32) for layer, n in self._num_experts.items()}
        by_geometry: dict[MoESpec, ExpertTable] = {}
        self._tables: dict[int, ExpertTable] = {}
        for layer in spec.moe_layers:
            moe_spec = spec.moe(layer)
            if moe_spec not in by_geometry:
                by_geometry[moe_spec] = expert_table(moe_spec, spec.hidden, num_slots)
            self._tables[layer] = by_geometry[moe_spec]
        self._poison, self._scratch = poison, torch.empty(0)

    def apply(
        self, layer: int, x_TD: torch.Tensor, ids_TK: torch.Tensor, weights_TK: torch.Tensor, residual_TD: torch.Tensor
    ) -> torch.Tensor:
        ids = ids_TK.numpy()
        experts = distinct(ids, self._num_experts[layer])
        if not self._residency.try_hit_all(layer, experts):
            pairs_TKD = self._compute_in_waves(layer, x_TD, ids, experts)
            return moe_combine(pairs_TKD, ids_TK, weights_TK, x_TD.dtype, residual=residual_TD)
        slots_TK = torch.from_numpy(self._expert2slot[layer].take(ids))
        return moe(x_TD, slots_TK, ids_TK, weights_TK, self._tables[layer], residual=residual_TD)

    def stats(self) -> ExpertStats:
        cache = self._residency
        return ExpertStats(
            hits=cache.hits,
            cold_misses=cache.cold_misses,
            collision_misses=cache.collision_misses,
            evictions=cache.evictions,
            bytes_moved=self._store.stats().bytes_read,
            wait_s=self._transfers.wait_s,
            budget_bytes=self._fixed_bytes + self._arena.nbytes,
            peak_bytes=self._fixed_bytes + cache.peak_used * self._arena.slot_bytes,
        )

    def check_integrity(self) -> None:
        self._residency.check_idle()
        for layer, expert2slot in self._expert2slot.items():
            resident = self._residency.resident(layer)
            if any(expert2slot[expert] != slot for expert, slot in resident.items()):
                raise RuntimeError(f"expert slots of layer {layer} differ from the residency")
        if self._transfers.pending:
            raise RuntimeError(f"expert transfers: {self._transfers.pending} left over")

    def close(self) -> None:
        self._store.close()
        self._tables.clear()

    def _compute_in_waves(self, layer: int, x_TD: torch.Tensor, ids: Ids, experts: list[int]) -> torch.Tensor:
        pairs_TKD = self._pairs(ids.shape[0], ids.shape[1], x_TD.shape[1])
        run = LayerPass(self._residency, layer, experts)
        try:
            self._transfers.begin(run.start())
            if run.hits:
                self._compute(layer, x_TD, ids, run.hits, pairs_TKD)
            self._transfers.begin(run.retire_hits())
            while run.unfinished:
                views = self._take(run)
                self._compute(layer, x_TD, ids, views, pairs_TKD)
                self._transfers.begin(run.retire(views))
        except BaseException:
            self._abandon(run)
            raise
        return pairs_TKD

    def _take(self, run: LayerPass) -> list[View]:
        """Views that have arrived, in the tables. Raises the first error, after noting the arrivals beside it."""
        views, errors = [], []
        for view, tensors, error in self._transfers.take():
            if tensors is None:
                errors.append(error)
                continue
            self._tables[view.layer].set(view.slot, tensors)
            self._expert2slot[view.layer][view.expert] = view.slot
            run.arrived(view)
            views.append(view)
        for error in errors:
            assert error is not None
            raise error
        return views

    def _abandon(self, run: LayerPass) -> None:
        while self._transfers.pending:
            self._transfers.take()
        for view in run.abandon():
            self._arena.poison(view.slot)

    def _compute(
        self, layer: int, x_TD: torch.Tensor, ids: Ids, views: Sequence[View], pairs_TKD: torch.Tensor
    ) -> None:
        """The outputs of the views' experts, each to its place."""
        expert2slot = np.full(self._num_experts[layer], -1, dtype=np.int32)
        for view in views:
            self._residency.check(view)
            expert2slot[view.expert] = view.slot
        moe_pairs(x_TD, torch.from_numpy(expert2slot.take(ids)), self._tables[layer], pairs_TKD)

    def _pairs(self, rows: int, choices: int, hidden: int) -> torch.Tensor:
        """[T, K, D] f32 with arbitrary contents. One allocation, kept: its size is the largest batch's."""
        wanted = rows * choices * hidden
        if self._scratch.numel() < wanted:
            self._scratch = torch.empty(wanted)
        pairs = self._scratch[:wanted].view(rows, choices, hidden)
        if self._poison:
            pairs.view(torch.uint8).fill_(POISON_BYTE)
        return pairs


def distinct(ids: Ids, num_experts: int) -> list[int]:
    """Ascending."""
    if ids.size <= SMALL_IDS:
        return sorted(set(ids.ravel().tolist()))
    return np.flatnonzero(np.bincount(ids.ravel(), minlength=num_experts)).tolist()
