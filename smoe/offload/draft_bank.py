"""The bank of a model's self-draft: every routed expert resident in 4 bits; all else is the model's own."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from smoe.core.errors import ConfigError
from smoe.kernels import Int4Table, Int4Tensors, moe
from smoe.models.bank import InMemory, RoutedRows
from smoe.models.loading import Checkpoint
from smoe.models.quantised import expert_of
from smoe.models.quantised_file import load_int4
from smoe.models.spec import DecoderSpec

Params = Mapping[str, torch.Tensor]
Routed = Callable[[int, npt.NDArray[Any]], None]
"""(layer, ids i32 [T, K]): what the draft's router chose, before its experts run."""


class Int4Bank(InMemory):
    """As ResidentBank over the weights in 4 bits. Tells `routed`, which may be set anew, of every layer's choices."""

    def __init__(
        self,
        spec: DecoderSpec,
        layers: Mapping[int, Int4Tensors],
        group_size: int,
        *,
        routed: Routed | None = None,
    ) -> None:
        """`layers` as quantise_layers yields them, on the device that computes."""
        self.routed = routed
        self.nbytes = sum(part.nbytes for layer in layers.values() for part in layer if part is not None)
        self._tables: dict[int, Int4Table] = {}
        for layer in spec.moe_layers:
            moe_spec = spec.moe(layer)
            table = Int4Table(
                moe_spec.router.num_experts,
                spec.hidden,
                moe_spec.ffn,
                group_size,
                act=moe_spec.activation,
                alpha=moe_spec.gptoss_alpha,
                limit=moe_spec.gptoss_limit,
            )
            for expert in range(moe_spec.router.num_experts):
                table.set(expert, expert_of(layers[layer], expert))
            self._tables[layer] = table

    def apply(self, rows: RoutedRows, residual_TD: torch.Tensor) -> torch.Tensor:
        layer, x_TD, ids_TK, weights_TK, _ = rows
        ids = ids_TK.cpu().numpy()
        if self.routed is not None:
            self.routed(layer, ids)
        self._accesses += ids.size if len(ids) == 1 else len(np.unique(ids))
        return moe(x_TD, ids_TK, ids_TK, weights_TK, self._tables[layer], residual=residual_TD)

    def close(self) -> None:
        self._tables.clear()


def make_int4_bank(
    checkpoint: Checkpoint,
    group_size: int,
    *,
    device: str | torch.device = "cpu",
    routed: Routed | None = None,
    folder: Path | None = None,
    layers: Mapping[int, Int4Tensors] | None = None,
) -> Int4Bank:
    """Of `layers`, else from the cache (see quantised_file) or quantised now, which it then keeps. Raises as load_int4
    does."""
    if layers is None:
        layers = load_int4(checkpoint, group_size, folder=folder)
    if torch.device(device).type != "cpu":
        layers = {
            layer: Int4Tensors(*(None if part is None else part.to(device) for part in parts))  # type: ignore[arg-type]
            for layer, parts in layers.items()
        }
    return Int4Bank(checkpoint.spec, layers, group_size, routed=routed)


def check_aliases(model: Params, draft: Params) -> None:
    """That a self-draft's parameters are the model's own tensors, no fewer and no more. Raises ConfigError."""
    for name in sorted(model.keys() | draft.keys()):
        if name not in draft or name not in model:
            whose = "draft" if name not in draft else "model"
            raise ConfigError("draft", name, f"a parameter of both, but the {whose} has none of that name")
        mine, own = draft[name], model[name]
        if mine.shape != own.shape:
            raise ConfigError(f"draft: {name}", list(mine.shape), f"the shape of the model's, {list(own.shape)}")
        same = (mine.data_ptr(), mine.dtype, mine.stride()) == (own.data_ptr(), own.dtype, own.stride())
        if not same or mine.device != own.device:
            raise ConfigError(f"draft: {name}", "a copy", "the model's own tensor")
