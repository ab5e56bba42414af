"""Experts spread over ranks: the bank that a layer sees, and what one rank holds of them."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from smoe.collectives.dispatch import Dispatched, Dispatcher
from smoe.collectives.schedules.protocol import Schedule
from smoe.core.stats import ExpertStats
from smoe.kernels import ExpertTable, ExpertTensors, moe
from smoe.models.bank import ExpertBank, InMemory, Lookahead, RoutedRows, Substitutions, expert_table
from smoe.models.informed import Informed
from smoe.models.spec import DecoderSpec

Tensor = torch.Tensor


class HeldExperts:
    """Some experts in memory, a table of `experts[layer]` for each layer. Made once, never changed."""

    def __init__(
        self, spec: DecoderSpec, experts: Mapping[int, Sequence[int]], read: Callable[[int, int], ExpertTensors]
    ) -> None:
        self.tables: dict[int, ExpertTable] = {}
        self.expert2slot: dict[int, Tensor] = {}
        """[E + 1] i32 by layer, -1 for experts elsewhere. The last entry is where -1, no choice, looks."""
        self.nbytes = 0
        for layer, held in experts.items():
            moe_spec = spec.moe(layer)
            table = expert_table(moe_spec, spec.hidden, len(held))
            expert2slot = torch.full((moe_spec.router.num_experts + 1,), -1, dtype=torch.int32)
            for slot, expert in enumerate(held):
                tensors = read(layer, expert)
                table.set(slot, tensors)
                self.nbytes += sum(tensor.nbytes for tensor in tensors if tensor is not None)
                expert2slot[expert] = slot
            self.tables[layer], self.expert2slot[layer] = table, expert2slot

    def tensors(self, layer: int, expert: int) -> ExpertTensors:
        """Of an expert that is here."""
        return self.tables[layer].tensors(int(self.expert2slot[layer][expert]))


class RankBank(InMemory):
    """An ExpertBank of some experts, all in memory. It is asked for no others."""

    def __init__(
        self, spec: DecoderSpec, experts: Mapping[int, Sequence[int]], read: Callable[[int, int], ExpertTensors]
    ) -> None:
        """`experts[layer]` are read once."""
        self._spec = spec
        self.held = self.hold(experts, read)
        """Another one may take its place between two forwards."""

    def hold(self, experts: Mapping[int, Sequence[int]], read: Callable[[int, int], ExpertTensors]) -> HeldExperts:
        """What may become `held`; changes nothing."""
        return HeldExperts(self._spec, experts, read)

    def apply(self, rows: RoutedRows, residual_TD: Tensor) -> Tensor:
        layer, x_TD, ids_TK, weights_TK, _ = rows
        self._accesses += int(np.count_nonzero(np.bincount(ids_TK.cpu().numpy().ravel() + 1)[1:]))
        slots_TK = self.held.expert2slot[layer][ids_TK.long()]
        return moe(x_TD, slots_TK, ids_TK, weights_TK, self.held.tables[layer], residual=residual_TD)

    def close(self) -> None:
        self.held.tables.clear()


class DispatchedBank:
    """Sends each row to the ranks that hold its experts, where `local` computes them, and adds up what comes back."""

    def __init__(
        self,
        local: ExpertBank,
        dispatcher: Dispatcher,
        expert2place: Mapping[int, Tensor],
        schedule: Schedule,
        informed: Informed | None = None,
        moved: Callable[[Mapping[int, Tensor]], None] | None = None,
    ) -> None:
        """`expert2place[layer]` [E] i64 is the place of the rank that computes an expert for this one; `moved` is told
        it, and every other one that takes its place. `informed` computes with `local` where that wants to know more of
        a row."""
        self._local, self._dispatcher, self._informed, self._moved = local, dispatcher, informed, moved
        self.use(expert2place, schedule)

    def use(self, expert2place: Mapping[int, Tensor], schedule: Schedule) -> None:
        """As given when it was made; between two forwards, on all ranks."""
        self._expert2place, self._schedule = dict(expert2place), schedule
        if self._moved is not None:
            self._moved(self._expert2place)

    @property
    def needs_logits(self) -> bool:
        return self._informed is not None and self._informed.lossy

    def use_lookahead(self, lookahead: Lookahead) -> None:
        """Not of this rank's own rows: the local experts are used by rows of all ranks."""

    def begin_forward(self, token_ids_T: Tensor) -> None:
        self._local.begin_forward(token_ids_T)
        if self._informed is not None:
            self._informed.begin_forward(len(token_ids_T))

    def substitutions(self) -> Substitutions | None:
        """Of this rank's own rows, each of which is one rank's in a layer: those of all ranks of a group add up."""
        return None if self._informed is None else self._informed.substitutions()

    def apply(self, rows: RoutedRows, residual_TD: Tensor) -> Tensor:
        return self.apply_beside(rows, lambda: residual_TD)

    def apply_beside(self, rows: RoutedRows, residual: Callable[[], Tensor]) -> Tensor:
        layer, x_TD, ids_TK, weights_TK, logits_TE = rows
        device_TK = self._expert2place[layer][ids_TK.long()]
        self._schedule.note_devices(layer, device_TK)

        informed, hidden = self._informed, x_TD.shape[1]
        if informed is not None:
            x_TX = informed.widen(x_TD, ids_TK, weights_TK, logits_TE)
            nothing_TX = torch.zeros(len(x_TD), x_TX.shape[1] - hidden, dtype=x_TD.dtype)
            out_TX = self._dispatcher.apply(
                x_TX,
                ids_TK,
                weights_TK,
                device_TK,
                lambda: torch.cat((residual(), nothing_TX), dim=1),
                lambda sent: informed.compute(layer, sent, hidden),
            )
            return informed.hear(out_TX, hidden, self._schedule.own_rows())

        def compute(sent: Dispatched) -> Tensor:
            nothing_ND = torch.zeros_like(sent.x_ND)
            return self._local.apply(RoutedRows(layer, sent.x_ND, sent.ids_NK, sent.weights_NK), nothing_ND)

        return self._dispatcher.apply(x_TD, ids_TK, weights_TK, device_TK, residual, compute)

    def stats(self) -> ExpertStats:
        return self._local.stats()

    def check_integrity(self) -> None:
        self._local.check_integrity()

    def close(self) -> None:
        self._local.close()
