"""Bytes that one layer puts on the wire, by the formulas of Speculative MoE with what was counted put in: those of
smoe.collectives.wire, for n rows dispatched to another rank. The experts of every row are what the routers chose,
counted apart from anything that was sent. Of T rows with k experts each,

    n = k T (1 - LAR), or with de-duplication a row for each pair of a row and another rank that it needs
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from smoe.bench.comm.cases import Case
from smoe.clustering.traffic import RINGS, count_pass
from smoe.collectives.chunks import Chunks
from smoe.collectives.wire import wire_bytes
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
    rings = RINGS["allreduce" if case.schedule == "allreduce" else "scatter"]
    wire = wire_bytes(
        case.schedule,
        ranks=ranks,
        rows=total_rows,
        hidden=hidden,
        dtype_bytes=dtype_bytes,
        choices=choices,
        sent_rows=sent,
        messages=messages / len(layers),
    )
    share = busiest / len(layers) * ranks / sent if sent else 1.0
    return LayerBytes(lar=lar, rows=sent, busiest_share=share, wire=wire, hidden_only=rings * ring + 2 * sent * row)
