"""ExpertBank: where expert weights live is its business; the decoder only asks for the weighted sum."""

from collections.abc import Callable
from typing import NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch

from smoe.core.stats import ExpertStats
from smoe.kernels import ExpertTable, ExpertTensors, moe
from smoe.models.spec import DecoderSpec, MoESpec

Lookahead = Callable[[int, torch.Tensor], torch.Tensor]
"""(layer, h_TD) -> logits_TE float16 of the next MoE layer's router for this layer's input."""


class RoutedRows(NamedTuple):
    """A layer's input and what its router chose for it: ids i32 in [0, E), distinct within a row, and weights f32.
    Logits only for a bank that needs them."""

    layer: int
    x_TD: torch.Tensor
    ids_TK: torch.Tensor
    weights_TK: torch.Tensor
    logits_TE: torch.Tensor | None = None

    def part(self, some: slice) -> Self:
        """Some of the rows."""
        layer, x_TD, ids_TK, weights_TK, logits_TE = self
        told_TE = None if logits_TE is None else logits_TE[some]
        return type(self)(layer, x_TD[some], ids_TK[some], weights_TK[some], told_TE)


class Substitutions(NamedTuple):
    """Of one forward, by row, summed over the layers: choices computed by another expert than the router's [T], and
    their router weights [T], each normalised over the row's choices."""

    slots_T: npt.NDArray[np.integer]
    mass_T: npt.NDArray[np.floating]


class ExpertBank(Protocol):
    """All banks give the same bits for the same input (unless lossy by choice): summed in ascending expert id."""

    @property
    def needs_logits(self) -> bool:
        """Whether rows must come with the router's logits."""
        ...

    def use_lookahead(self, lookahead: Lookahead) -> None:
        """How to look ahead, should the bank want to. Called once, before the first forward."""
        ...

    def begin_forward(self, token_ids_T: torch.Tensor) -> None:
        """The tokens of the forward whose layers follow, i64."""
        ...

    def substitutions(self) -> Substitutions | None:
        """Of the forward begun last; None when nothing was substituted."""
        ...

    def apply(self, rows: RoutedRows, residual_TD: torch.Tensor) -> torch.Tensor:
        """residual + sum over a row's experts of weight * expert(x), [T, D] in x's dtype. Changes no argument.

        May raise StoreError; not re-entrant.
        """
        ...

    def stats(self) -> ExpertStats: ...

    def check_integrity(self) -> None: ...

    def close(self) -> None: ...


@runtime_checkable
class SendingBank(ExpertBank, Protocol):
    """A bank that waits for rows to come back from elsewhere."""

    def apply_beside(self, rows: RoutedRows, residual: Callable[[], torch.Tensor]) -> torch.Tensor:
        """As `apply`; `residual` gives [T, D], and is called once, while rows are under way."""
        ...


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


class InMemory:
    """What banks have in common whose experts never move: nothing to foresee, and every use is a hit."""

    needs_logits = False
    _accesses = 0

    def use_lookahead(self, lookahead: Lookahead) -> None:
        return

    def begin_forward(self, token_ids_T: torch.Tensor) -> None:
        return

    def substitutions(self) -> None:
        return None

    def stats(self) -> ExpertStats:
        return ExpertStats(hits=self._accesses)

    def check_integrity(self) -> None:
        return


class ResidentBank(InMemory):
    """Every expert in memory, one table a layer. `read(layer, expert)` delivers the weights once, at load."""

    def __init__(self, spec: DecoderSpec, read: Callable[[int, int], ExpertTensors]) -> None:
        self._tables: dict[int, ExpertTable] = {}
        for layer in spec.moe_layers:
            moe_spec = spec.moe(layer)
            table = expert_table(moe_spec, spec.hidden, moe_spec.router.num_experts)
            for expert in range(moe_spec.router.num_experts):
                table.set(expert, read(layer, expert))
            self._tables[layer] = table

    def apply(self, rows: RoutedRows, residual_TD: torch.Tensor) -> torch.Tensor:
        layer, x_TD, ids_TK, weights_TK, _ = rows
        self._accesses += ids_TK.shape[1] if len(ids_TK) == 1 else _count_distinct(ids_TK)
        return moe(x_TD, ids_TK, ids_TK, weights_TK, self._tables[layer], residual=residual_TD)

    def close(self) -> None:
        self._tables.clear()


def _count_distinct(ids_TK: torch.Tensor) -> int:
    return int(np.count_nonzero(np.bincount(ids_TK.cpu().numpy().ravel())))
