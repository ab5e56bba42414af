"""Bit-equal logits, offloaded against resident: every family, every capacity from one slot a layer to all."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from transformers import AutoConfig

from smoe.core.config import DEFAULT_POLICY, EngineConfig
from smoe.models.bank import ExpertBank
from smoe.models.batch import Batch
from smoe.models.decoder import Decoder
from smoe.models.kv import KVCache
from smoe.models.loading import Checkpoint, open_checkpoint
from smoe.offload.bank import OffloadedBank
from smoe.offload.build import POISON_VARIABLE, make_bank
from smoe.offload.policies.catalog import CATALOG
from tests.models.parity import write_checkpoint

NUM_EXPERTS = 6
_COMMON = {
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 20,
    "vocab_size": 89,
    "max_position_embeddings": 512,
}
_QWEN = {"moe_intermediate_size": 20, "num_experts": NUM_EXPERTS, "num_experts_per_tok": 3}
_LOCAL = {"num_local_experts": NUM_EXPERTS, "num_experts_per_tok": 2}
_DEEPSEEK = {
    "num_key_value_heads": 6,
    "kv_lora_rank": 20,
    "q_lora_rank": 28,
    "qk_nope_head_dim": 14,
    "qk_rope_head_dim": 10,
    "v_head_dim": 18,
    "moe_intermediate_size": 22,
    "n_routed_experts": NUM_EXPERTS,
    "num_experts_per_tok": 3,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
}
_DELTA = {
    "head_dim": 16,
    "linear_num_key_heads": 3,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 10,
    "linear_value_head_dim": 14,
    "shared_expert_intermediate_size": 26,
    "full_attention_interval": 3,
}
FAMILIES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "mixtral": ("mixtral", _LOCAL, {}),
    "phi-3.5-moe": ("phimoe", _LOCAL, {}),
    "qwen2-moe": ("qwen2_moe", _QWEN | {"shared_expert_intermediate_size": 26}, {}),
    "qwen3-moe": ("qwen3_moe", _QWEN, {}),
    "qwen3-moe-stacked-bf16": ("qwen3_moe", _QWEN, {"layout": "stacked", "dtype": torch.bfloat16}),
    "olmoe": ("olmoe", {"num_experts": NUM_EXPERTS, "num_experts_per_tok": 4}, {}),
    "deepseek-v2": ("deepseek_v2", _DEEPSEEK | {"topk_method": "greedy", "n_group": 1, "topk_group": 1}, {}),
    "deepseek-v3": ("deepseek_v3", _DEEPSEEK | {"n_group": 2, "topk_group": 2}, {"dtype": torch.bfloat16}),
    "gpt-oss": ("gpt_oss", _LOCAL | {"head_dim": 10, "sliding_window": 16}, {}),
    "qwen3-next": ("qwen3_next", _QWEN | _DELTA, {}),
}


class Model(NamedTuple):
    checkpoint: Checkpoint
    dtype: torch.dtype
    params: dict[str, torch.Tensor]

    def bank(self, expert_memory: str, expert_policy: str = DEFAULT_POLICY) -> ExpertBank:
        config = EngineConfig(expert_memory=expert_memory, expert_policy=expert_policy)
        return make_bank(self.checkpoint, config, self.dtype)

    def decoder(self, bank: ExpertBank) -> Decoder:
        return Decoder(self.checkpoint.spec, self.params, bank, dtype=self.dtype)


@pytest.fixture(autouse=True)
def _poison(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(POISON_VARIABLE, "1")


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    name, options, how = FAMILIES[request.param]
    config = AutoConfig.for_model(name, **(_COMMON | options))
    return write_checkpoint(config, tmp_path_factory.mktemp(request.param), **how)


def load(folder: Path | str, dtype: torch.dtype) -> Model:
    checkpoint = open_checkpoint(folder)
    return Model(checkpoint, dtype, checkpoint.params(dtype=dtype))


def logits(model: Model, bank: ExpertBank, *, sequences: int, prompt: int, steps: int) -> torch.Tensor:
    """Of prompts of unequal lengths in one batch, then `steps` greedy tokens of each: [sequences * (steps + 1), V]."""
    decoder, rows = model.decoder(bank), prompt + steps + sequences
    kv = KVCache(model.checkpoint.spec, num_rows=rows * sequences, num_states=sequences, dtype=model.dtype)
    generator = torch.Generator().manual_seed(sequences)
    vocab = model.checkpoint.spec.vocab
    new = [torch.randint(vocab, (prompt + i,), generator=generator).tolist() for i in range(sequences)]
    past, out = [0] * sequences, []
    for _ in range(steps + 1):
        out.append(decoder.forward(Batch.build([(new[i], i * rows, past[i], i) for i in range(sequences)]), kv))
        past = [p + len(n) for p, n in zip(past, new, strict=True)]
        new = [[token] for token in out[-1].argmax(-1).tolist()]
        bank.check_integrity()
    return torch.cat(out)


def assert_same_bits(model: Model, capacities: list[str], policy: str = DEFAULT_POLICY, **run: int) -> None:
    expected = logits(model, model.bank("all"), **run)
    assert expected.isfinite().all()
    for capacity in capacities:
        bank = model.bank(capacity, policy)
        assert isinstance(bank, OffloadedBank)
        actual = logits(model, bank, **run)
        stats = bank.stats()
        bank.close()
        assert torch.equal(actual, expected), f"capacity {capacity}"
        assert 0 < stats.peak_bytes <= stats.budget_bytes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("sequences", [1, 4])
def test_every_capacity_of_every_family(folder: Path, dtype: torch.dtype, sequences: int) -> None:
    capacities = [str(slots) for slots in range(1, NUM_EXPERTS + 1)]
    assert_same_bits(load(folder, dtype), capacities, sequences=sequences, prompt=7, steps=10)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("sequences", [1, 4])
def test_every_capacity_of_every_family_over_256_tokens(folder: Path, dtype: torch.dtype, sequences: int) -> None:
    capacities = [str(slots) for slots in range(1, NUM_EXPERTS + 1)]
    assert_same_bits(load(folder, dtype), capacities, sequences=sequences, prompt=60, steps=256)


@pytest.mark.parametrize(
    ("capacity", "dtype", "sequences"),
    [("25%", torch.float32, 1), ("3", torch.bfloat16, 1), ("40", torch.bfloat16, 4), ("64", torch.float32, 1)],
)
def test_the_built_in_model_over_256_tokens(capacity: str, dtype: torch.dtype, sequences: int) -> None:
    assert_same_bits(load("builtin", dtype), [capacity], sequences=sequences, prompt=30, steps=256)


@pytest.mark.slow
@pytest.mark.parametrize("sequences", [1, 4])
def test_the_built_in_model_at_every_capacity(sequences: int) -> None:
    capacities = [str(slots) for slots in range(1, 65)]
    assert_same_bits(load("builtin", torch.float32), capacities, sequences=sequences, prompt=30, steps=32)


POLICIES = [f"evict={name}" for name, policy in CATALOG["evict"].items() if not policy.needs_future]
PREFETCHES = [name for name in CATALOG["prefetch"] if name not in ("oracle", "utility")]
SHARED = [f"evict=utility:{state},prefetch=utility" for state in ("inertial", "adaptive")]
"""Where prefetching goes by the eviction's own score."""


def combined(evictions: list[str]) -> list[str]:
    return [f"{eviction},prefetch={prefetch}" for eviction in evictions for prefetch in PREFETCHES] + SHARED


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    name, options, how = FAMILIES["qwen3-moe"]
    config = AutoConfig.for_model(name, **(_COMMON | options))
    return write_checkpoint(config, tmp_path_factory.mktemp("policies"), **how)


@pytest.mark.parametrize("policy", combined(POLICIES))
def test_every_lossless_policy(qwen3: Path, policy: str) -> None:
    for sequences in (1, 4):
        capacities = ["1", "2", "3", "6", "0.4"]
        assert_same_bits(load(qwen3, torch.float32), capacities, policy, sequences=sequences, prompt=5, steps=6)


@pytest.mark.parametrize("policy", combined(["evict=lru", "evict=least-stale"]))
def test_policies_on_the_built_in_model(policy: str) -> None:
    assert_same_bits(load("builtin", torch.float32), ["1", "7", "25%"], policy, sequences=1, prompt=30, steps=64)
