"""How a family's checkpoint tensors become our parameters: declared as data, carried out by smoe.models.loading."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch

from smoe.models.spec import DecoderSpec


def concat_rows(tensors: list[torch.Tensor]) -> torch.Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors, 0)


@dataclass(frozen=True, slots=True)
class Source:
    """One tensor of the checkpoint, with the shape it must have.

    `aliases` are other names that it may go by (transformers 5 renames some modules when it saves the stacked
    layout); exactly one of all its names must be present.
    """

    name: str
    shape: tuple[int, ...]
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Param:
    """One of our parameters, built from checkpoint tensors; `keep_float32` holds it in fp32 in every mode.

    `build` takes whole heads as well as all of them: of the rows of some heads of each source it makes their part.
    """

    sources: tuple[Source, ...]
    build: Callable[[list[torch.Tensor]], torch.Tensor] = concat_rows
    keep_float32: bool = False


@dataclass(frozen=True, slots=True)
class Cut:
    """The part of a parameter that is wanted: of its sources, one behind the other, these rows (axis 0), each range
    within one source, in ascending sources; or of its one source these columns (axis 1)."""

    axis: Literal[0, 1]
    ranges: tuple[tuple[int, int], ...]

    @property
    def size(self) -> int:
        return sum(stop - start for start, stop in self.ranges)


NOTHING = Cut(0, ())


ExpertKind = Literal["split", "stacked", "gptoss"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertNames:
    """Names of one MoE layer's expert tensors in either layout; templates of `split` hold `{e}`.

    Keys: split gate, up, down; stacked gate_up, down; gptoss gate_up, down, gate_up_bias, down_bias. MXFP4 is found
    by itself, as the gptoss names with `_blocks` and `_scales`.

    split: gate, up [F, D] and down [D, F] per expert.
    stacked: gate_up [E, 2F, D] (gate rows first) and down [E, D, F] (transformers 5).
    gptoss: gate_up [E, D, 2F] with gate and up columns interleaved, down [E, F, D], biases [E, 2F] and [E, D].
    A family lists every layout it may come in; exactly one must be present.
    """

    split: Mapping[str, str] | None = None
    stacked: Mapping[str, str] | None = None
    gptoss: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointMap:
    """`params` by our dotted name, `experts` by decoder layer, `ignored` = tensors that may be present and are unused
    (prefixes, for example of multi-token-prediction layers)."""

    params: Mapping[str, Param]
    experts: Mapping[int, ExpertNames]
    ignored: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Family:
    """One model family: `parse` reads a transformers config, `checkpoint_map` names its tensors."""

    name: str
    model_types: tuple[str, ...]
    parse: Callable[..., DecoderSpec]
    checkpoint_map: Callable[[DecoderSpec], CheckpointMap]
