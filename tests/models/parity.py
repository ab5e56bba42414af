"""Compares a family with transformers on a small random checkpoint: logits, routing, and independence of the batch.

`assert_parity(config, tmp_path)` writes the checkpoint with transformers, lets both sides load it from disk and runs a
prompt and then single tokens through both. Sizes should be asymmetric, so that a swapped pair of them shows.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging as hf_logging

from smoe.kernels import ExpertTensors
from smoe.models.bank import ResidentBank
from smoe.models.batch import Batch
from smoe.models.decoder import Decoder
from smoe.models.kv import KVCache
from smoe.models.loading import open_checkpoint
from smoe.models.router import Router

hf_logging.disable_progress_bar()

LOGIT_TOLERANCE = 1e-4  # max abs difference in fp32, the project's promise
WEIGHT_TOLERANCE = 1e-6  # router weights from the same hidden states
END_TO_END_WEIGHT_TOLERANCE = 1e-5  # and from each side's own, which differ by the rounding of the layers below
PROMPT_LEN, NUM_DECODE = 64, 32

Routes = dict[int, tuple[torch.Tensor, torch.Tensor]]
"""By MoE layer: ids [T, K] sorted within a row, and their weights."""
Hidden = dict[int, torch.Tensor]
"""By MoE layer: what its router and experts read, [T, D]."""


@dataclass(slots=True)
class Report:
    logit_diff: float = 0.0
    end_to_end_weight_diff: float = 0.0
    weight_diff: float = 0.0
    bf16_id_match: float = 0.0
    bf16_logit_diff: float = 0.0


def assert_parity(
    config: Any,
    tmp_path: Path,
    *,
    layout: str = "split",
    file_dtype: torch.dtype = torch.float32,
    edit_config: Callable[[dict[str, Any]], None] | None = None,
    prompt_len: int = PROMPT_LEN,
    num_decode: int = NUM_DECODE,
    bf16_floor: float | None = 0.9,
    seed: int = 0,
) -> Report:
    """`edit_config` changes config.json by hand before either side reads it (spellings of older files).

    `bf16_floor` is the least share of chosen experts that bf16 must have in common with transformers in bf16;
    None leaves bf16 out.
    """
    folder = write_checkpoint(config, tmp_path, layout=layout, dtype=file_dtype, edit_config=edit_config, seed=seed)
    tokens = torch.randint(config.vocab_size, (prompt_len + num_decode,), generator=torch.Generator().manual_seed(seed))
    report = Report()
    expected, expected_routes, hidden = transformers_run(folder, tokens, prompt_len, torch.float32)
    ours = SmoeRun(folder, torch.float32)
    actual, routes = ours.run(tokens, prompt_len)
    assert actual.isfinite().all()
    report.logit_diff = (actual - expected).abs().max().item()
    assert report.logit_diff < LOGIT_TOLERANCE, report
    assert expected.std() > 0.1, "the random checkpoint is degenerate"
    # A family's scaling factor scales the rounding with the weights.
    scale = max(1.0, *(ours.spec.moe(i).router.scale for i in ours.spec.moe_layers))
    report.end_to_end_weight_diff = _weight_diff(routes, expected_routes)
    assert report.end_to_end_weight_diff < END_TO_END_WEIGHT_TOLERANCE * scale, report
    report.weight_diff = _weight_diff(ours.routes_of(hidden), expected_routes)
    assert report.weight_diff < WEIGHT_TOLERANCE * scale, report
    _assert_chunks(ours, tokens[:prompt_len], actual[:prompt_len])
    _assert_batch(ours, tokens)
    if bf16_floor is None:
        return report
    half_expected, half_expected_routes, _ = transformers_run(folder, tokens, prompt_len, torch.bfloat16)
    half, half_routes = SmoeRun(folder, torch.bfloat16).run(tokens, prompt_len)
    report.bf16_logit_diff = (half - half_expected.float()).abs().max().item()
    report.bf16_id_match = id_match(half_routes, half_expected_routes)
    print(f"\n{report}")
    assert report.bf16_id_match >= bf16_floor, report
    return report


def write_checkpoint(
    config: Any,
    tmp_path: Path,
    *,
    layout: str = "split",
    edit_config: Callable[[dict[str, Any]], None] | None = None,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Path:
    """A model folder of random weights as save_pretrained writes it, in the hub's layout or (`stacked`) its own."""
    folder = tmp_path / "model"
    model = AutoModelForCausalLM.from_config(config).to(dtype)
    randomize(model, seed)
    model.save_pretrained(folder, save_original_format=layout == "split")
    if edit_config is not None:
        path = folder / "config.json"
        raw = json.loads(path.read_text())
        edit_config(raw)
        path.write_text(json.dumps(raw))
    return folder


def randomize(model: torch.nn.Module, seed: int) -> None:
    """Weights under which values stay of order one, routing is decided and every norm and bias matters."""
    generator = torch.Generator().manual_seed(seed)
    state = dict(model.named_parameters()) | dict(model.named_buffers())
    for name, tensor in state.items():
        if "inv_freq" in name:
            continue
        noise = torch.randn(tensor.shape, generator=generator)
        if "A_log" in name:
            noise = 1.5 * noise - 2.0  # decays from a few tokens to hundreds
        elif tensor.ndim == 1:
            # Norm weights stay near the 1 (or, where the norm adds one, the 0) that they are made with.
            noise = 0.2 * noise + (tensor.mean().item() if "norm" in name and name.endswith("weight") else 0.0)
        else:
            gain = 2.0 if name.endswith((".gate.weight", ".router.weight")) else 1.0
            noise *= gain / model.config.hidden_size**0.5
        with torch.no_grad():
            tensor.copy_(noise)


def transformers_run(
    folder: Path, tokens: torch.Tensor, prompt_len: int, dtype: torch.dtype
) -> tuple[torch.Tensor, Routes, Hidden]:
    """Logits [T, V], routes and the experts' input, of the prompt in one piece and then token by token."""
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager", experts_implementation="eager"
    ).eval()
    seen: dict[int, list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]] = {}
    for layer, block in enumerate(model.model.layers):
        for module in block.modules():
            if type(module).__name__.endswith("Experts"):
                # Every family calls its experts as (hidden states, ids, weights).
                module.register_forward_pre_hook(
                    lambda _, args, layer=layer: seen.setdefault(layer, []).append((args[1], args[2], args[0]))
                )
    logits, cache = [], None
    with torch.no_grad():
        for piece in (tokens[:prompt_len], *tokens[prompt_len:].split(1)):
            out = model(piece[None], cache=cache, use_cache=True)
            cache = out.cache
            logits.append(out.logits[0])
    hidden = {layer: torch.cat([part[2] for part in parts]) for layer, parts in seen.items()}
    return torch.cat(logits), {layer: _sorted_routes(parts) for layer, parts in seen.items()}, hidden


class SmoeRun:
    """One loaded decoder; each run gets fresh rows of a KV arena that is full of NaN, so reading a stale one shows."""

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        checkpoint = open_checkpoint(folder)
        self.spec, self.dtype = checkpoint.spec, dtype

        def read(layer: int, expert: int) -> ExpertTensors:
            return checkpoint.read_expert(layer, expert, dtype=dtype)

        self.params = checkpoint.params(dtype=dtype)
        self.decoder = Decoder(self.spec, self.params, ResidentBank(self.spec, read), dtype=dtype)

    def cache(self, num_rows: int, num_states: int = 1) -> KVCache:
        kv = KVCache(self.spec, num_rows=num_rows, num_states=num_states, dtype=self.dtype)
        for layer in kv.layers:
            layer.first.fill_(torch.nan)
            layer.second.fill_(torch.nan)
        return kv

    def routes_of(self, hidden: Hidden) -> Routes:
        """What each layer's router makes of the given input."""
        routers = {i: Router(self.spec.moe(i).router, self.params, f"layers.{i}.moe.router") for i in hidden}
        return {i: _sorted_routes([routers[i](hidden[i])[:2]]) for i in hidden}

    def run(self, tokens: torch.Tensor, prompt_len: int) -> tuple[torch.Tensor, Routes]:
        kv = self.cache(len(tokens) + 3)
        seen: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}

        def sink(layer: int, ids: torch.Tensor, weights: torch.Tensor, logits: torch.Tensor) -> None:
            seen.setdefault(layer, []).append((ids, weights))

        logits, past = [], 0
        for piece in (tokens[:prompt_len], *tokens[prompt_len:].split(1)):
            span = (piece.tolist(), 3, past, 0)
            batch = Batch.build([span], logit_rows=list(range(len(piece))), route_sink=sink)
            logits.append(self.decoder.forward(batch, kv))
            past += len(piece)
        return torch.cat(logits), {layer: _sorted_routes(parts) for layer, parts in seen.items()}


def id_match(a: Routes, b: Routes) -> float:
    """The share of chosen experts that both chose, over all rows and layers."""
    shares = [(a[i][0].unsqueeze(2) == b[i][0].unsqueeze(1)).any(2).float().mean() for i in b]
    return torch.stack(shares).mean().item()


def _sorted_routes(parts: list[tuple[torch.Tensor, ...]]) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.cat([part[0] for part in parts]).long()
    weights = torch.cat([part[1] for part in parts]).float()
    order = ids.argsort(dim=1)
    return ids.gather(1, order), weights.gather(1, order)


def _weight_diff(actual: Routes, expected: Routes) -> float:
    """The largest difference of two weights; asserts that the same experts were chosen everywhere."""
    assert actual.keys() == expected.keys()
    for layer, (ids, _) in expected.items():
        assert torch.equal(actual[layer][0], ids), f"layer {layer} chose other experts"
    return max((actual[layer][1] - weights).abs().max().item() for layer, (_, weights) in expected.items())


def _assert_chunks(run: SmoeRun, prompt: torch.Tensor, whole: torch.Tensor) -> None:
    """The prompt in uneven chunks, bit for bit as in one piece."""
    kv, past, logits = run.cache(len(prompt)), 0, []
    sizes = [5, 1, len(prompt) // 2, len(prompt)]
    for size in sizes:
        piece = prompt[past : past + size].tolist()
        batch = Batch.build([(piece, 0, past, 0)], logit_rows=list(range(len(piece))), prompt_lens=[len(prompt)])
        logits.append(run.decoder.forward(batch, kv))
        past += len(piece)
    assert torch.equal(torch.cat(logits), whole), "chunked prefill differs from whole prefill"


def _assert_batch(run: SmoeRun, tokens: torch.Tensor) -> None:
    """Sequences of unequal lengths at unequal stages, bit for bit as each alone."""
    lengths, steps = (17, 1, 40), 3
    starts = [0, lengths[0] + steps, sum(lengths[:2]) + 2 * steps]
    texts = [tokens[i : i + length + steps].tolist() for i, length in enumerate(lengths)]

    def spans(which: list[int], step: int) -> list[tuple[list[int], int, int, int]]:
        out = []
        for i in which:
            first, count = (0, lengths[i]) if step == 0 else (lengths[i] + step - 1, 1)
            out.append((texts[i][first : first + count], starts[i], first, i))
        return out

    def logits(which: list[int]) -> torch.Tensor:
        kv = run.cache(sum(lengths) + steps * len(lengths), len(lengths))
        return torch.stack([run.decoder.forward(Batch.build(spans(which, step)), kv) for step in range(steps + 1)])

    together = logits([0, 1, 2])
    for i in range(len(lengths)):
        assert torch.equal(together[:, i : i + 1], logits([i])), f"sequence {i} notices its neighbours"
