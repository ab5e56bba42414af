"""Small models of every family with heads and experts that divide by 2 and 4, cut over ranks as threads."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from smoe.collectives.dispatch import Dispatcher
from smoe.collectives.group import Group
from smoe.collectives.schedules.protocol import Schedule
from smoe.models.bank import ResidentBank
from smoe.models.batch import Batch
from smoe.models.decoder import Decoder
from smoe.models.dispatched import DispatchedBank, RankBank
from smoe.models.kv import KVCache
from smoe.models.loading import Checkpoint
from smoe.models.spread import TensorParallel
from smoe.models.tensor_parallel import TensorShare

NUM_EXPERTS = 8
COMMON = {
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 20,
    "vocab_size": 89,
    "max_position_embeddings": 512,
}
_QWEN = {"moe_intermediate_size": 20, "num_experts": NUM_EXPERTS, "num_experts_per_tok": 3}
_LOCAL = {"num_local_experts": NUM_EXPERTS, "num_experts_per_tok": 2}
_DEEPSEEK = {
    "num_key_value_heads": 8,
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
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 10,
    "linear_value_head_dim": 14,
    "shared_expert_intermediate_size": 26,
    "full_attention_interval": 3,
}
FAMILIES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "mixtral": ("mixtral", _LOCAL, {}),
    "phi-3.5-moe": ("phimoe", _LOCAL | {"attention_bias": True, "lm_head_bias": True}, {}),
    "qwen2-moe": ("qwen2_moe", _QWEN | {"shared_expert_intermediate_size": 26}, {}),
    "qwen3-moe": ("qwen3_moe", _QWEN, {}),
    "olmoe": ("olmoe", {"num_experts": NUM_EXPERTS, "num_experts_per_tok": 4, "num_key_value_heads": 4}, {}),
    "deepseek-v2": ("deepseek_v2", _DEEPSEEK | {"topk_method": "greedy", "n_group": 1, "topk_group": 1}, {}),
    "deepseek-v2-no-q-lora": (
        "deepseek_v2",
        _DEEPSEEK | {"q_lora_rank": None, "topk_method": "greedy", "n_group": 1, "topk_group": 1},
        {},
    ),
    "deepseek-v3": ("deepseek_v3", _DEEPSEEK | {"n_group": 2, "topk_group": 2}, {}),
    "gpt-oss": ("gpt_oss", _LOCAL | {"head_dim": 10, "sliding_window": 16}, {}),
    "qwen3-next": ("qwen3_next", _QWEN | _DELTA, {}),
}

MakeSchedule = Callable[[Group], Schedule]


def whole_decoder(checkpoint: Checkpoint, dtype: torch.dtype) -> Decoder:
    bank = ResidentBank(checkpoint.spec, lambda layer, expert: checkpoint.read_expert(layer, expert, dtype=dtype))
    return Decoder(checkpoint.spec, checkpoint.params(dtype=dtype), bank, dtype=dtype)


def rank_decoder(
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    group: Group,
    make_schedule: MakeSchedule,
    expert2place: dict[int, torch.Tensor],
    *,
    dedup: bool = True,
    tensor: Group | None = None,
) -> Decoder:
    """One rank's part of the model: of its experts by `group`, of the rest by `tensor`, by default the same."""
    tensor = tensor or group
    share = TensorShare(checkpoint.spec, tensor.rank, tensor.size)
    schedule = make_schedule(tensor)
    held = {layer: (place == group.rank).nonzero().flatten().tolist() for layer, place in expert2place.items()}
    local = RankBank(checkpoint.spec, held, lambda layer, e: checkpoint.read_expert(layer, e, dtype=dtype))
    bank = DispatchedBank(local, Dispatcher(group, dedup=dedup), expert2place, schedule)
    params = checkpoint.params(dtype=dtype, part=share.cut)
    spread = TensorParallel(tensor, schedule, share)
    return Decoder(share.local_spec(), params, bank, dtype=dtype, spread=spread)


def random_places(checkpoint: Checkpoint, size: int, seed: int) -> dict[int, torch.Tensor]:
    """Any rank may hold any number of experts, perhaps none."""
    generator = torch.Generator().manual_seed(seed)
    spec = checkpoint.spec
    return {
        layer: torch.randint(size, (spec.moe(layer).router.num_experts,), generator=generator)
        for layer in spec.moe_layers
    }


def run(
    decoder: Decoder, prompts: Sequence[Sequence[int]], tokens: Sequence[Sequence[int]], *, chunk: int | None = None
) -> list[torch.Tensor]:
    """Logits of every step: the prompts in one batch (in chunks of `chunk` tokens of one sequence, if given), then
    `tokens[s]` of each sequence, one a step, whatever the logits say."""
    reach = max(len(p) for p in prompts) + max((len(t) for t in tokens), default=0)
    kv = KVCache(decoder.spec, num_rows=reach * len(prompts), num_states=len(prompts), dtype=decoder.dtype)
    out = []
    if chunk is None:
        out.append(decoder.forward(Batch.build([(list(p), i * reach, 0, i) for i, p in enumerate(prompts)]), kv))
    else:
        for i, prompt in enumerate(prompts):
            for start in range(0, len(prompt), chunk):
                piece = list(prompt[start : start + chunk])
                batch = Batch.build([(piece, i * reach, start, i)], prompt_lens=[len(prompt)])
                out.append(decoder.forward(batch, kv))
    for step in range(len(tokens[0]) if tokens else 0):
        spans = [([t[step]], i * reach, len(prompts[i]) + step, i) for i, t in enumerate(tokens)]
        out.append(decoder.forward(Batch.build(spans), kv))
    return out
