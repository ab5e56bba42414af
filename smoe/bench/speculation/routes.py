"""What a 4-bit copy knows of its model, both reading the same text: next tokens, experts a token and a window.

Shapes: L MoE layers, T tokens, K experts a token.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from smoe.models.bank import ExpertBank
from smoe.models.batch import Batch
from smoe.models.decoder import Decoder, Params
from smoe.models.kv import KVCache
from smoe.models.loading import Checkpoint

Array = npt.NDArray[Any]
WIDTHS = (1, 2, 3, 5, 9, 17, 33, 65)


@dataclass(frozen=True, slots=True)
class Reading:
    """`next_T` are the likeliest next tokens, `ids_LTK` the chosen experts."""

    next_T: Array
    ids_LTK: Array


def read(
    checkpoint: Checkpoint, params: Params, bank: ExpertBank, dtype: torch.dtype, texts: Sequence[Sequence[int]]
) -> list[Reading]:
    """Every text by itself."""
    decoder = Decoder(checkpoint.spec, params, bank, dtype=dtype)
    kv = KVCache(checkpoint.spec, num_rows=max(map(len, texts)), num_states=1, dtype=dtype)
    found = []
    for text in texts:
        seen: list[Array] = []

        def note(_: int, ids_TK: torch.Tensor, *__: torch.Tensor, seen: list[Array] = seen) -> None:
            seen.append(ids_TK.numpy().copy())

        rows = list(range(len(text)))
        batch = Batch.build([(list(text), 0, 0, 0)], logit_rows=rows, route_sink=note)
        with torch.inference_mode():
            logits_TV = decoder.forward(batch, kv)
        found.append(Reading(logits_TV.argmax(-1).numpy(), np.stack(seen)))
    return found


def agreement(model: Sequence[Reading], draft: Sequence[Reading]) -> float:
    """Share of positions at which both have the same likeliest token."""
    return float(np.mean(np.concatenate([a.next_T == b.next_T for a, b in zip(model, draft, strict=True)])))


def recall(model: Sequence[Reading], draft: Sequence[Reading], width: int) -> float:
    """Of the distinct experts that the model asks for in `width` tokens of a layer, those that the draft asks for."""
    asked = known = 0
    for mine, other in zip(model, draft, strict=True):
        for wanted, told in zip(_unions(mine.ids_LTK, width), _unions(other.ids_LTK, width), strict=True):
            asked, known = asked + len(wanted), known + len(wanted & told)
    return known / asked


def union_size(readings: Sequence[Reading], width: int) -> float:
    """Distinct experts that `width` tokens ask for, a layer."""
    return float(np.mean([len(union) for reading in readings for union in _unions(reading.ids_LTK, width)]))


def _unions(ids_LTK: Array, width: int) -> list[set[int]]:
    starts = range(0, ids_LTK.shape[1] - width + 1, width)
    return [set(layer[at : at + width].ravel().tolist()) for layer in ids_LTK for at in starts]
