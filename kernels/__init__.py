"""Operations of the decoder on tensors: norms, linear layers, attention, routing and experts.

Each has a native CPU path and a torch twin in the same module, which is the reference, the CUDA path and the fallback.
Names are imported on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smoe.kernels.attention import Attention, Rows
    from smoe.kernels.combine import moe_combine
    from smoe.kernels.delta import GatedDelta
    from smoe.kernels.experts import ExpertTable, ExpertTensors
    from smoe.kernels.int4 import Int4Tensors
    from smoe.kernels.int4_table import Int4Table
    from smoe.kernels.latent import LatentAttention
    from smoe.kernels.linear import Linear
    from smoe.kernels.memory import alloc_huge
    from smoe.kernels.mixture import moe, moe_pairs
    from smoe.kernels.mlp import GatedMLP
    from smoe.kernels.norm import LayerNorm, RMSNorm
    from smoe.kernels.router import SoftmaxRouter, topk_softmax

_HOMES = {
    "Attention": "attention",
    "ExpertTable": "experts",
    "ExpertTensors": "experts",
    "GatedDelta": "delta",
    "GatedMLP": "mlp",
    "Int4Table": "int4_table",
    "Int4Tensors": "int4",
    "LatentAttention": "latent",
    "LayerNorm": "norm",
    "Linear": "linear",
    "RMSNorm": "norm",
    "Rows": "attention",
    "SoftmaxRouter": "router",
    "alloc_huge": "memory",
    "moe": "mixture",
    "moe_combine": "combine",
    "moe_pairs": "mixture",
    "topk_softmax": "router",
}

__all__ = [
    "Attention",
    "ExpertTable",
    "ExpertTensors",
    "GatedDelta",
    "GatedMLP",
    "Int4Table",
    "Int4Tensors",
    "LatentAttention",
    "LayerNorm",
    "Linear",
    "RMSNorm",
    "Rows",
    "SoftmaxRouter",
    "alloc_huge",
    "moe",
    "moe_combine",
    "moe_pairs",
    "topk_softmax",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
