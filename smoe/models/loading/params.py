"""Our parameters from the checkpoint's tensors, one source tensor at a time."""

from collections.abc import Mapping

import torch

from smoe.models.checkpoint import Param, Source, concat_rows
from smoe.models.loading.dtypes import WEIGHT_DTYPES, storage_dtype
from smoe.models.loading.expert_source import TensorRange
from smoe.models.loading.experts import take
from smoe.models.loading.reading import read_into


def locate_param(tensors: Mapping[str, TensorRange], param: Param) -> list[TensorRange]:
    """The sources of one parameter, checked. Raises CheckpointError."""
    return [take(tensors, _present(tensors, source), source.shape, dtypes=WEIGHT_DTYPES) for source in param.sources]


def _present(tensors: Mapping[str, TensorRange], source: Source) -> str:
    """The name that the folder uses; a second one of the same source is a left-over tensor."""
    return next((name for name in (source.name, *source.aliases) if name in tensors), source.name)


def param_dtype(sources: list[TensorRange], param: Param, dtype: torch.dtype) -> torch.dtype:
    """What `read_param` holds the parameter in; parts of unequal dtypes meet in fp32."""
    matrix = all(len(source.shape) == 2 for source in sources)
    targets = {storage_dtype(s.dtype, dtype, matrix=matrix, keep_float32=param.keep_float32) for s in sources}
    return targets.pop() if len(targets) == 1 else torch.float32


def read_param(sources: list[TensorRange], param: Param, dtype: torch.dtype) -> torch.Tensor:
    """One parameter for arithmetic in `dtype`, on the CPU; row-wise concatenations are read in place."""
    target = param_dtype(sources, param, dtype)
    if param.build is concat_rows:
        shape = (sum(source.shape[0] for source in sources), *sources[0].shape[1:])
        whole = torch.empty(shape, dtype=target)
        first = 0
        for source in sources:
            read_into(source, whole.narrow(0, first, source.shape[0]))
            first += source.shape[0]
        return whole
    parts = [torch.empty(source.shape, dtype=target) for source in sources]
    for source, part in zip(sources, parts, strict=True):
        read_into(source, part)
    return param.build(parts).contiguous()
