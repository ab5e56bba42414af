"""Rotary positions: from a config to a RopeSpec, and the cosines and sines of one step's rows."""

import copy
from dataclasses import dataclass, field
from typing import Any

import torch

from smoe.core.errors import CheckpointError
from smoe.models.batch import Batch, StepContext
from smoe.models.spec import DecoderSpec, RopeSpec

_FIRST_POSITIONS = 1024


def rope_parameters(config: Any) -> dict[str, Any]:
    """The config's rotary parameters under transformers 5's names, from either spelling.

    AutoConfig does this while it reads the file, but before it knows fields such as a top-level
    `original_max_position_embeddings`; its models do it once more, and so must we.
    """
    config = copy.deepcopy(config)
    config.standardize_rope_params()
    return dict(config.rope_parameters or {})


def rope_spec(config: Any, head_dim: int, *, partial_factor: float = 1.0, interleaved: bool = False) -> RopeSpec:
    """From a transformers config, whichever of `rope_scaling` and `rope_parameters` its file had.

    `partial_factor` is for families that turn only a part
    of each head. `dynamic` stretches positions only beyond `max_position_embeddings`, and no context is longer
    than that here, so it equals `default`. Raises CheckpointError.
    """
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    parameters = rope_parameters(config)
    kind = parameters.get("rope_type", "default")
    if kind == "default":
        rotary_dim = int(head_dim * partial_factor)
        theta = parameters.get("rope_theta", config.default_theta)
        exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim
        return RopeSpec(
            rotary_dim=rotary_dim, inv_freq=tuple((1.0 / theta**exponents).tolist()), interleaved=interleaved
        )
    kinds = ("default", "linear", "dynamic", "yarn", "longrope", "llama3")
    if kind not in kinds:
        raise CheckpointError(f"config.json: rope_parameters.rope_type: {kind!r} (one of {', '.join(kinds)})")
    # transformers reads the head's size from the config, where a family may leave it null.
    config = copy.deepcopy(config)
    config.head_dim = head_dim
    init = ROPE_INIT_FUNCTIONS[kind]
    try:
        inv_freq, factor = init(config)
        long, long_factor, original_len = None, 1.0, None
        if kind == "longrope":
            original_len = int(parameters["original_max_position_embeddings"])
            long, long_factor = init(config, seq_len=original_len + 1)
    except (KeyError, TypeError, ValueError, ArithmeticError, RuntimeError) as error:
        raise CheckpointError(f"config.json: rope_parameters: {parameters!r} (complete for {kind}: {error})") from error
    return RopeSpec(
        rotary_dim=2 * len(inv_freq),
        inv_freq=tuple(inv_freq.tolist()),
        attention_factor=float(factor),
        interleaved=interleaved,
        long_inv_freq=None if long is None else tuple(long.tolist()),
        long_attention_factor=float(long_factor),
        original_len=original_len,
    )


class RopeTables:
    """cos and sin by position, one pair of tables for each distinct RopeSpec, looked up once a step.

    longrope: the row at position p of a sequence whose prompt has n tokens uses the long factors when
    max(n, p + 1) exceeds the original length. That is what transformers computes for a prompt in one piece followed
    by single tokens (keys cached under the short factors stay as they are), and it depends neither on how
    a prompt is cut into steps nor on the neighbours in the batch.
    """

    def __init__(self, spec: DecoderSpec) -> None:
        self._max_positions = spec.max_positions
        self._keys: dict[RopeSpec, int] = {}
        self._tables: list[_Table] = []

    def key(self, rope: RopeSpec) -> int:
        """The number under which layers with this RopeSpec ask for their cosines and sines."""
        if rope not in self._keys:
            self._keys[rope] = len(self._tables)
            self._tables.append(_Table(rope))
        return self._keys[rope]

    def cos_sin(self, key: int, context: StepContext) -> tuple[torch.Tensor, torch.Tensor]:
        """[T, rotary_dim / 2] fp32 each, the attention factor included."""
        found = context.rope.get(key)
        if found is None:
            context.rope[key] = found = self._tables[key].look_up(context.batch, self._max_positions)
        return found


@dataclass(slots=True)
class _Table:
    rope: RopeSpec
    short: tuple[torch.Tensor, torch.Tensor] | None = None
    long: tuple[torch.Tensor, torch.Tensor] | None = None
    size: int = field(default=0)

    def look_up(self, batch: Batch, max_positions: int) -> tuple[torch.Tensor, torch.Tensor]:
        pos_T = batch.rows.pos_T
        needed = max(past + count for _, count, _, past in batch.rows.spans)
        if needed > self.size:
            self._grow(needed, max_positions, pos_T.device)
        assert self.short is not None
        cos, sin = self.short
        original_len = self.rope.original_len
        if self.long is None or original_len is None or max(needed, *batch.prompt_lens) <= original_len:
            return cos.index_select(0, pos_T), sin.index_select(0, pos_T)
        long_T1 = batch.reach_T().gt(original_len).unsqueeze(1)
        long_cos, long_sin = self.long
        return (
            torch.where(long_T1, long_cos.index_select(0, pos_T), cos.index_select(0, pos_T)),
            torch.where(long_T1, long_sin.index_select(0, pos_T), sin.index_select(0, pos_T)),
        )

    def _grow(self, needed: int, max_positions: int, device: torch.device) -> None:
        """Doubles up to the context's limit, so that a short conversation touches little memory."""
        size = max(self.size, _FIRST_POSITIONS)
        while size < needed:
            size *= 2
        self.size = max(needed, min(size, max_positions))
        rope = self.rope
        self.short = _cos_sin(rope.inv_freq, rope.attention_factor, self.size, device)
        if rope.long_inv_freq is not None:
            self.long = _cos_sin(rope.long_inv_freq, rope.long_attention_factor, self.size, device)


def _cos_sin(
    inv_freq: tuple[float, ...], factor: float, size: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    # In fp32 like transformers: at positions in the thousands the rounding of the angle is what decides parity.
    positions = torch.arange(size, dtype=torch.float32, device=device)
    angles = torch.outer(positions, torch.tensor(inv_freq, dtype=torch.float32, device=device))
    return angles.cos() * factor, angles.sin() * factor
