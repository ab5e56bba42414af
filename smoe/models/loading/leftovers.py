"""Tensors that no parameter uses: either known to be harmless, or an error."""

from collections.abc import Mapping

import torch

from smoe.core.errors import CheckpointError
from smoe.models.checkpoint import CheckpointMap
from smoe.models.loading.expert_source import TensorRange
from smoe.models.loading.reading import read_into
from smoe.models.spec import DecoderSpec

HEAD = "lm_head.weight"
_ROTARY_BUFFER = "rotary_emb.inv_freq"


def check_leftovers(
    spec: DecoderSpec, checkpoint_map: CheckpointMap, tensors: Mapping[str, TensorRange], used: set[str]
) -> None:
    """Raises CheckpointError for the first tensor that is neither used, ignored by the family, nor redundant."""
    for name, tensor in tensors.items():
        harmless = name.endswith(_ROTARY_BUFFER) or (name == HEAD and spec.tied_head)
        if name not in used and not harmless and not name.startswith(checkpoint_map.ignored):
            raise CheckpointError(f"{tensor.where} is not part of a {spec.family} model of this config (left over)")


def check_tied_head(spec: DecoderSpec, checkpoint_map: CheckpointMap, tensors: Mapping[str, TensorRange]) -> None:
    """Raises CheckpointError if a head is stored beside the embedding it is tied to, and differs; reads both."""
    if not spec.tied_head or HEAD not in tensors:
        return
    head, embed = tensors[HEAD], tensors[checkpoint_map.params["embed"].sources[0].name]
    same = head.shape == embed.shape and head.dtype is embed.dtype
    rows = max(1, (1 << 22) // max(1, embed.nbytes // max(1, embed.shape[0])))
    for first in range(0, embed.shape[0] if same else 0, rows):
        last = min(first + rows, embed.shape[0])
        a, b = (torch.empty((last - first, *embed.shape[1:]), dtype=embed.dtype) for _ in range(2))
        read_into(embed.rows(first, last), a)
        read_into(head.rows(first, last), b)
        same = same and torch.equal(a, b)
    if not same:
        raise CheckpointError(f"{head.where} differs from {embed.name}, though the config ties them")
