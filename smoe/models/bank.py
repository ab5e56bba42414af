"""ExpertBank: where expert weights live is its business; the decoder only asks for the weighted sum."""

from collections.abc import Callable
from typing import Protocol

import torch

from smoe.core.stats import ExpertStats
from smoe.kernels import ExpertTable, ExpertTensors, moe
from smoe.models.spec import DecoderSpec, MoESpec


class ExpertBank(Protocol):
    """All banks give the same bits for the same input: outputs are summed in ascending expert id."""

    def apply(
        self, layer: int, x_TD: torch.Tensor, ids_TK: torch.Tensor, weights_TK: torch.Tensor, residual_TD: torch.Tensor
    ) -> torch.Tensor:
        """residual + sum over a row's experts of weight * expert(x), in x's dtype. Changes no argument.

        ids i32 in [0, E), distinct within a row; weights f32. May raise StoreError; not re-entrant.
        """
        ...

    def stats(self) -> ExpertStats: ...

    def check_integrity(self) -> None: ...

    def close(self) -> None: ...


def expert_table(moe_spec: MoESpec, hidden: int, num_slots: int) -> ExpertTable:
    """An empty table of `num_slots` experts of this layer's geometry."""
    return ExpertTable(
        num_slots,
        hidden,
        moe_spec.ffn,
        act=moe_spec.activation,
        alpha=moe_spec.gptoss_alpha,
        limit=moe_spec.gptoss_limit,
    )


class ResidentBank:
    """Every expert in memory, one table a layer. `read(layer, expert)` delivers the weights once, at load."""

    def __init__(self, spec: DecoderSpec, read: Callable[[int, int], ExpertTensors]) -> None:
        self._tables: dict[int, ExpertTable] = {}
        self._accesses = 0
        for layer in spec.moe_layers:
            moe_spec = spec.moe(layer)
            table = expert_table(moe_spec, spec.hidden, moe_spec.router.num_experts)
            for expert in range(moe_spec.router.num_experts):
                table.set(expert, read(layer, expert))
            self._tables[layer] = table

    def apply(
        self, layer: int, x_TD: torch.Tensor, ids_TK: torch.Tensor, weights_TK: torch.Tensor, residual_TD: torch.Tensor
    ) -> torch.Tensor:
        self._accesses += ids_TK.numel()
        return moe(x_TD, ids_TK, ids_TK, weights_TK, self._tables[layer], residual=residual_TD)

    def stats(self) -> ExpertStats:
        return ExpertStats(hits=self._accesses)

    def check_integrity(self) -> None:
        return

    def close(self) -> None:
        self._tables.clear()
