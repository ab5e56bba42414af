"""What a placement holds, in figures fit for JSON."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from smoe.core.placement import Placement


def summarize(placement: Placement, report: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Sizes, then by layer: `copies` beyond one an expert; with tables `token_share` [G], the share of the vocabulary
    that table T sends to each device, and `confidence`, its mean."""
    num_slots = int(placement.slot2expert.shape[1])
    tables = placement.tables
    layers: list[dict[str, Any]] = []
    for row, layer in enumerate(placement.layers):
        copies = np.bincount(placement.slot2expert[row], minlength=placement.num_experts)
        entry: dict[str, Any] = {
            "layer": layer,
            "most_copies": int(copies.max()),
            "experts_with_copies": int((copies > 1).sum()),
        }
        if tables is not None and tables.vocab_size:
            counts = np.bincount(tables.token_device[row], minlength=placement.num_devices)
            entry["token_share"] = (counts / tables.vocab_size).tolist()
            entry["confidence"] = float(tables.token_confidence[row].mean(dtype=np.float64))
        layers.append(entry)
    return {
        "fingerprint": placement.fingerprint,
        "num_experts": placement.num_experts,
        "num_layers": len(placement.layers),
        "devices": placement.num_devices,
        "slots_of_device": list(placement.slots_of_device),
        "copies": num_slots - placement.num_experts,
        "vocab_size": None if tables is None else tables.vocab_size,
        "layers": layers,
        "report": dict(report or {}),
    }
