"""Bytes that one layer puts on the wire, by the formulas of Speculative MoE with what was counted put in.

The experts of every row are what the routers chose, counted apart from anything that was sent. G ranks, T rows, k
experts a row, h bytes of a hidden state; over all ranks together.

    reduce     (G - 1) T h, twice for an all-reduce        gather   (G - 1) T h
    dispatch   n h, k (2 + 4) n bytes of ids and weights, 16 a message           combine   n h
    n = k T (1 - LAR), or with de-duplication a row for each pair of a row and another rank that it needs

On top, and small: where the chain of devices is followed, one more value with each gathered row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from smoe.bench.comm.cases import Case
from smoe.clustering.traffic import RINGS, count_pass
from smoe.collectives.chunks import Chunks
from smoe.collectives.message import HEAD_BYTES, Layout
from smoe.core.placement import Array, Placement

PURPOSES = ("reduce", "dispatch", "combine", "gather")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerBytes:
    """Means over the layers. `wire` is by purpose; `rows` of hidden states dispatched to another rank."""

    lar: float
    rows: float
    busiest_share: float
    wire: dict[str, float]
    hidden_only: float

    @property
    def total(self) -> float:
        return sum(self.wire.values())


def by_formula(
    case: Case, placement: Placement, ids: Sequence[Mapping[int, Array]], hidden: int, dtype_bytes: int
) -> LayerBytes:
    """`ids[r][layer]` [R, K] are the experts of the rows that rank r worked on."""
    import torch

    ranks, layers = len(ids), placement.layers
    row = hidden * dtype_bytes
    activations = remote = remote_rows = busiest = messages = 0
    total_rows = choices = 0
    for index, layer in enumerate(layers):
        own = [rank_ids[layer] for rank_ids in ids]
        at = np.repeat(np.arange(ranks), [len(each) for each in own])
        counted = count_pass(np.concatenate(own), placement.on_device[index], at)
        total_rows, choices = len(at), own[0].shape[1]
        messages += sum(Chunks().count(len(each)) for each in own)
        activations += len(at) * choices
        remote += counted.remote_activations
        remote_rows += counted.remote_rows
        moved = counted.rows if case.dedup else counted.activations
        away = moved - np.diag(np.diag(moved))
        busiest += max(int(away.sum(0).max()), int(away.sum(1).max()))
    lar = 1 - remote / activations
    sent = (remote_rows if case.dedup else choices * total_rows * len(layers) * (1 - lar)) / len(layers)
    ring = (ranks - 1) * total_rows * row
    layout = Layout(hidden, {2: torch.bfloat16, 4: torch.float32}[dtype_bytes], choices)
    told = (ranks - 1) * total_rows * dtype_bytes if case.schedule == "speculative" else 0
    rings = RINGS["allreduce" if case.schedule == "allreduce" else "scatter"]
    wire = {
        "reduce": float((rings - 1) * ring),
        "dispatch": sent * layout.row_bytes + HEAD_BYTES * (ranks - 1) * messages / len(layers),
        "combine": sent * row,
        "gather": float(ring + told),
    }
    share = busiest / len(layers) * ranks / sent if sent else 1.0
    return LayerBytes(lar=lar, rows=sent, busiest_share=share, wire=wire, hidden_only=rings * ring + 2 * sent * row)
