"""A Qwen3-MoE checkpoint made heavier without changing what it computes.

The hidden vector x of h values becomes Q x of H values, Q [H, h] with orthonormal columns. Matrices that read the
hidden vector are multiplied by Q^T on the right, those that write it by Q on the left. What lies between:

* RMSNorm. |Q x| = |x|, so the mean square over H is h/H of the mean over h. With eps' = eps h/H and a constant gain
  sqrt(h/H) the norm gives Q (x / rms(x)); the old gain moves into the matrices behind the norm. The final norm's gain
  moves into the head, which can then no longer be the embedding.
* Per-head norms of q and k share eps with the others. Scaling q and k by sqrt(h/H) makes eps' mean there what eps did.
* Expert units are repeated, and the columns of the down projection divided by how often.
"""

import json
import math
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from smoe.core.errors import ConfigError
from smoe.models.loading.checkpoint import Checkpoint
from smoe.models.loading.expert_source import TensorRange
from smoe.models.loading.reading import read_into
from smoe.models.loading.writer import PlannedTensor, write_shards
from smoe.models.spec import DenseSpec

_SHARD_BYTES = 1_000_000_000
_BLOCK_ROWS = 4096
_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
_COPIED = (
    "tokenizer*",
    "vocab*",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template*",
    "generation_config.json",
    "LICENSE*",
)


def inflate(
    source: Checkpoint,
    out: Path,
    *,
    hidden: int,
    expert_ffn: int,
    seed: int = 0,
    dtype: Literal["bfloat16", "float32"] = "bfloat16",
    on_progress: Callable[[int, int], None] | None = None,
) -> None:
    """Writes a folder that transformers and smoe load, with the outputs of `source` up to rounding to `dtype`.

    `on_progress(bytes_written, bytes_total)` is called after each tensor. `out` appears when it is complete.
    Raises ConfigError for a source that is not Qwen3-MoE, sizes below the source's, or an `out` that holds something.
    """
    _check(source, out, hidden, expert_ffn, dtype)
    plan = _Plan(source, hidden, expert_ffn, _orthonormal(hidden, source.spec.hidden, seed), _DTYPES[dtype])
    tensors = list(plan.tensors())
    out = out.absolute()
    partial = out.with_name(out.name + ".partial")
    try:
        # What a killed run left has this name too.
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        need, free = sum(tensor.nbytes for tensor in tensors), shutil.disk_usage(partial).free
        if need > free:
            raise ConfigError("out", str(out), f"{need} bytes are needed on that disk, {free} are free")
        write_shards(partial, tensors, shard_bytes=_SHARD_BYTES, on_progress=on_progress)
        _write_side_files(source, partial, hidden, expert_ffn, seed, dtype)
        if out.exists():
            out.rmdir()
        partial.rename(out)
    except OSError as error:
        raise ConfigError("out", str(out), f"cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class _Plan:
    source: Checkpoint
    hidden: int
    expert_ffn: int
    q_Hh: torch.Tensor
    dtype: torch.dtype

    def tensors(self) -> Iterator[PlannedTensor]:
        spec = self.source.spec
        embed, norm = "model.embed_tokens.weight", "model.norm.weight"
        yield self._reads_hidden(embed, self._range(embed))
        for i, layer in enumerate(spec.layers):
            prefix = f"model.layers.{i}"
            yield from self._attention(f"{prefix}.self_attn", f"{prefix}.input_layernorm.weight")
            gain = f"{prefix}.post_attention_layernorm.weight"
            yield self._constant_norm(gain)
            if isinstance(layer.mlp, DenseSpec):
                for key in ("gate", "up"):
                    name = f"{prefix}.mlp.{key}_proj.weight"
                    yield self._reads_hidden(name, self._range(name), gain)
                name = f"{prefix}.mlp.down_proj.weight"
                yield self._writes_hidden(name, self._range(name))
                continue
            name = f"{prefix}.mlp.gate.weight"
            yield self._reads_hidden(name, self._range(name), gain)
            for e in range(layer.mlp.router.num_experts):
                parts = self.source.expert_source(i, e).parts
                name = f"{prefix}.mlp.experts.{e}"
                for key in ("gate", "up"):
                    yield self._reads_hidden(f"{name}.{key}_proj.weight", parts[key], gain, units=self.expert_ffn)
                yield self._writes_hidden(f"{name}.down_proj.weight", parts["down"], units=self.expert_ffn)
        yield self._constant_norm(norm)
        yield self._reads_hidden("lm_head.weight", self._range(embed if spec.tied_head else "lm_head.weight"), norm)

    def _attention(self, prefix: str, gain: str) -> Iterator[PlannedTensor]:
        yield self._constant_norm(gain)
        for key, scale in (("q", self._norm_ratio), ("k", self._norm_ratio), ("v", 1.0)):
            name = f"{prefix}.{key}_proj.weight"
            yield self._reads_hidden(name, self._range(name), gain, scale=scale)
            if (bias := f"{prefix}.{key}_proj.bias") in self.source.tensors:
                yield self._scaled(bias, scale)
        name = f"{prefix}.o_proj.weight"
        yield self._writes_hidden(name, self._range(name))
        if (bias := f"{prefix}.o_proj.bias") in self.source.tensors:
            yield self._writes_hidden(bias, self._range(bias))
        for key in ("q", "k"):
            yield self._scaled(f"{prefix}.{key}_norm.weight", 1.0)

    @property
    def _norm_ratio(self) -> float:
        return math.sqrt(self.source.spec.hidden / self.hidden)

    @property
    def _stored_gain(self) -> torch.Tensor:
        """The norm's constant gain as the output dtype holds it; matrices take up what the rounding lost."""
        return torch.tensor(self._norm_ratio, dtype=self.dtype)

    def _range(self, name: str) -> TensorRange:
        return self.source.tensors[name]

    def _constant_norm(self, name: str) -> PlannedTensor:
        return PlannedTensor(name, (self.hidden,), self.dtype, lambda: [self._stored_gain.expand(self.hidden)])

    def _scaled(self, name: str, scale: float) -> PlannedTensor:
        source = self._range(name)
        return PlannedTensor(name, source.shape, self.dtype, lambda: [(_read(source) * scale).to(self.dtype)])

    def _reads_hidden(
        self, name: str, source: TensorRange, gain: str | None = None, *, scale: float = 1.0, units: int | None = None
    ) -> PlannedTensor:
        """[R, h] -> [R, H], with the gain of the norm in front folded in; rows repeated in turn up to `units`."""
        rows = units or source.shape[0]

        def pieces() -> Iterator[torch.Tensor]:
            right_hH = self.q_Hh.T * scale
            if gain is not None:
                fold = self._norm_ratio / float(self._stored_gain)
                right_hH = right_hH * (_read(self._range(gain)) * fold).unsqueeze(1)
            for first in range(0, source.shape[0], _BLOCK_ROWS):
                block = _read(source.rows(first, min(first + _BLOCK_ROWS, source.shape[0])))
                whole = (block @ right_hH).to(self.dtype)
                if units is None:
                    yield whole
            if units is not None:
                yield whole[torch.arange(units) % source.shape[0]]

        return PlannedTensor(name, (rows, self.hidden), self.dtype, pieces)

    def _writes_hidden(self, name: str, source: TensorRange, *, units: int | None = None) -> PlannedTensor:
        """[h] or [h, C] -> [H] or [H, C]; columns repeated in turn up to `units`, each divided by its count."""

        def pieces() -> Iterator[torch.Tensor]:
            left = self.q_Hh @ _read(source)
            if units is not None:
                unit = torch.arange(units) % source.shape[1]
                left = (left / torch.bincount(unit))[:, unit]
            yield left.to(self.dtype)

        return PlannedTensor(name, (self.hidden, *((units,) if units else source.shape[1:])), self.dtype, pieces)


def _check(source: Checkpoint, out: Path, hidden: int, expert_ffn: int, dtype: str) -> None:
    spec, model_type = source.spec, str(source.config.model_type)
    if model_type != "qwen3_moe":
        raise ConfigError("model", model_type, "inflation knows qwen3_moe only")
    if dtype not in _DTYPES:
        raise ConfigError("dtype", dtype, " or ".join(_DTYPES))
    if hidden < spec.hidden:
        raise ConfigError("hidden", hidden, f"at least the source's {spec.hidden}")
    ffn = max((spec.moe(i).ffn for i in spec.moe_layers), default=0)
    if expert_ffn < ffn:
        raise ConfigError("expert_ffn", expert_ffn, f"at least the source's {ffn}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError("out", str(out), "an empty or new folder")


def _orthonormal(rows: int, columns: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    gaussian = torch.randn(rows, columns, dtype=torch.float64, generator=generator)
    q_Hh: torch.Tensor = torch.linalg.qr(gaussian)[0]
    return q_Hh


def _read(source: TensorRange) -> torch.Tensor:
    values = torch.empty(source.shape, dtype=source.dtype)
    read_into(source, values)
    return values.to(torch.float64)


def _write_side_files(source: Checkpoint, folder: Path, hidden: int, expert_ffn: int, seed: int, dtype: str) -> None:
    config: dict[str, Any] = json.loads((source.folder / "config.json").read_text(encoding="utf-8"))
    config.pop("dtype", None)
    config |= {
        "hidden_size": hidden,
        "moe_intermediate_size": expert_ffn,
        "rms_norm_eps": source.spec.norm_eps * source.spec.hidden / hidden,
        "tie_word_embeddings": False,
        "torch_dtype": dtype,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    origin = {"source_fingerprint": source.fingerprint, "hidden": hidden, "expert_ffn": expert_ffn, "seed": seed}
    (folder / "inflation.json").write_text(json.dumps(origin | {"dtype": dtype}, indent=2), encoding="utf-8")
    for pattern in _COPIED:
        for path in source.folder.glob(pattern):
            if path.is_file():
                shutil.copyfile(path, folder / path.name)
    # The weights are derived from the source's, so its card and licences go with them.
    if (card := source.folder / "README.md").is_file():
        shutil.copyfile(card, folder / "SOURCE_README.md")
    if (licenses := source.folder / "licenses").is_dir():
        shutil.copytree(licenses, folder / "licenses")
