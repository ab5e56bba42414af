"""Our parameters from the checkpoint's tensors, one source tensor at a time."""

from collections.abc import Mapping

import torch

from smoe.models.checkpoint import Cut, Param, Source, concat_rows
from smoe.models.loading.dtypes import WEIGHT_DTYPES, storage_dtype
from smoe.models.loading.expert_source import TensorRange
from smoe.models.loading.experts import take
from smoe.models.loading.reading import read_columns, read_into


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


def read_param(sources: list[TensorRange], param: Param, dtype: torch.dtype, cut: Cut | None = None) -> torch.Tensor:
    """One parameter, or the part of it that `cut` says, for arithmetic in `dtype`, on the CPU. Reads no more of its
    sources; row-wise concatenations are read in place."""
    target = param_dtype(sources, param, dtype)
    if cut is not None and cut.axis == 1:
        assert param.build is concat_rows
        return read_columns(sources[0], cut.ranges, target)
    pieces = [[source] for source in sources] if cut is None else _pieces(sources, cut)
    rows = [sum(piece.shape[0] for piece in of_source) for of_source in pieces]
    if param.build is concat_rows:
        whole = torch.empty((sum(rows), *sources[0].shape[1:]), dtype=target)
        parts = list(torch.split(whole, rows))
    else:
        parts = [torch.empty((n, *source.shape[1:]), dtype=target) for n, source in zip(rows, sources, strict=True)]
    for of_source, part in zip(pieces, parts, strict=True):
        first = 0
        for piece in of_source:
            read_into(piece, part.narrow(0, first, piece.shape[0]))
            first += piece.shape[0]
    return whole if param.build is concat_rows else param.build(parts).contiguous()


def cut_nbytes(sources: list[TensorRange], param: Param, dtype: torch.dtype, cut: Cut | None = None) -> int:
    """What `read_param` will take, without reading anything."""
    values = sum(torch.Size(source.shape).numel() for source in sources)
    if cut is not None:
        values = values * cut.size // (sources[0].shape[1] if cut.axis else sum(s.shape[0] for s in sources))
    return values * param_dtype(sources, param, dtype).itemsize


def _pieces(sources: list[TensorRange], cut: Cut) -> list[list[TensorRange]]:
    """By source, the rows of it that are wanted."""
    pieces: list[list[TensorRange]] = []
    first = 0
    for source in sources:
        stop = first + source.shape[0]
        pieces.append([source.rows(a - first, b - first) for a, b in cut.ranges if first <= a and b <= stop])
        first = stop
    assert sum(len(of_source) for of_source in pieces) == len(cut.ranges), "a range goes over two tensors"
    return pieces
