"""The network of the built-in model for training: Qwen3-MoE in plain torch, saved under the names of transformers."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

VOCAB, HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 4096, 192, 6, 6, 2, 32
EXPERTS, TOP_K, EXPERT_FFN = 64, 8, 48
THETA, EPS, CONTEXT = 10000.0, 1e-6, 1024

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "decoder_sparse_step": 1,
    "head_dim": HEAD_DIM,
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "initializer_range": 0.02,
    "intermediate_size": EXPERT_FFN * TOP_K,
    "max_position_embeddings": CONTEXT,
    "mlp_only_layers": [],
    "moe_intermediate_size": EXPERT_FFN,
    "norm_topk_prob": True,
    "num_attention_heads": HEADS,
    "num_experts": EXPERTS,
    "num_experts_per_tok": TOP_K,
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": KV_HEADS,
    "output_router_logits": False,
    "rms_norm_eps": EPS,
    "rope_theta": THETA,
    "rope_scaling": None,
    "router_aux_loss_coef": 0.001,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": VOCAB,
}


class RMSNorm(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x.float(), (x.shape[-1],), self.weight, EPS)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj = nn.Linear(HIDDEN, HEADS * HEAD_DIM, bias=False)
        self.k_proj = nn.Linear(HIDDEN, KV_HEADS * HEAD_DIM, bias=False)
        self.v_proj = nn.Linear(HIDDEN, KV_HEADS * HEAD_DIM, bias=False)
        self.o_proj = nn.Linear(HEADS * HEAD_DIM, HIDDEN, bias=False)
        self.q_norm, self.k_norm = RMSNorm(HEAD_DIM), RMSNorm(HEAD_DIM)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        b, t, _ = x.shape
        q = self.q_norm(self.q_proj(x).view(b, t, HEADS, HEAD_DIM)).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).view(b, t, KV_HEADS, HEAD_DIM)).transpose(1, 2)
        v = self.v_proj(x).view(b, t, KV_HEADS, HEAD_DIM).transpose(1, 2)
        q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v.to(q.dtype), is_causal=True, enable_gqa=True)
        out: torch.Tensor = self.o_proj(y.transpose(1, 2).reshape(b, t, -1))
        return out


class SparseMLP(nn.Module):
    """Returns (output [T, D], balance loss, z loss, each expert's share of the choices [E])."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(HIDDEN, EXPERTS, bias=False)
        self.gate_up = nn.Parameter(torch.randn(EXPERTS, 2 * EXPERT_FFN, HIDDEN) * 0.02)
        self.down = nn.Parameter(torch.randn(EXPERTS, HIDDEN, EXPERT_FFN) * 0.02 / math.sqrt(2 * LAYERS))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        logits = self.gate(x.float())
        probs = logits.softmax(-1)
        weight, ids = probs.topk(TOP_K, -1)
        weight = weight / weight.sum(-1, keepdim=True)
        flat = ids.reshape(-1)
        order = flat.argsort()
        counts = torch.bincount(flat, minlength=EXPERTS)
        parts = torch.split(x.index_select(0, order // TOP_K), counts.tolist())
        scales = torch.split(weight.reshape(-1, 1)[order], counts.tolist())
        outs = []
        # unbind, not indexing: its backward stacks once instead of zero-filling the bank per expert
        for part, scale, gate_up, down in zip(parts, scales, self.gate_up.unbind(), self.down.unbind(), strict=True):
            gate, up = F.linear(part, gate_up).chunk(2, -1)
            outs.append(F.linear(F.silu(gate) * up * scale, down))
        out = torch.cat(outs).index_select(0, order.argsort()).view(-1, TOP_K, HIDDEN).sum(1, dtype=torch.float32)
        share = counts.float() / flat.numel()
        balance = EXPERTS * (share * probs.mean(0)).sum()
        z_loss = logits.logsumexp(-1).square().mean()
        return out, balance, z_loss, share.detach()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(HIDDEN), RMSNorm(HIDDEN)
        self.self_attn, self.mlp = Attention(), SparseMLP()

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        y, balance, z_loss, share = self.mlp(self.post_attention_layernorm(x).flatten(0, 1))
        return x + y.view_as(x), balance, z_loss, share


class Model(nn.Module):
    """Returns (final hidden state [B, T, D], balance loss, z loss, shares [L, E]); the head is the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCAB, HIDDEN)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = RMSNorm(HIDDEN)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02 / (math.sqrt(2 * LAYERS) if "o_proj" in name else 1))

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        x = self.embed_tokens(ids) * 1.0
        pos = torch.arange(ids.shape[1], dtype=torch.float32)
        freq = 1.0 / THETA ** (torch.arange(0, HEAD_DIM, 2).float() / HEAD_DIM)
        angle = torch.cat([pos[:, None] * freq] * 2, -1)
        cos, sin = angle.cos(), angle.sin()
        balances, z_losses, shares = [], [], []
        for layer in self.layers:
            x, balance, z_loss, share = layer(x, cos, sin)
            balances.append(balance)
            z_losses.append(z_loss)
            shares.append(share)
        return self.norm(x), torch.stack(balances).mean(), torch.stack(z_losses).mean(), torch.stack(shares)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return F.linear(hidden, self.embed_tokens.weight)


def checkpoint_tensors(model: Model) -> dict[str, torch.Tensor]:
    """bf16, one tensor an expert."""
    state = {"model.embed_tokens.weight": model.embed_tokens.weight, "model.norm.weight": model.norm.weight}
    for i, layer in enumerate(model.layers):
        assert isinstance(layer, Block)
        p = f"model.layers.{i}."
        for name in ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm"):
            state[f"{p}self_attn.{name}.weight"] = getattr(layer.self_attn, name).weight
        state[p + "input_layernorm.weight"] = layer.input_layernorm.weight
        state[p + "post_attention_layernorm.weight"] = layer.post_attention_layernorm.weight
        state[p + "mlp.gate.weight"] = layer.mlp.gate.weight
        for e in range(EXPERTS):
            gate, up = layer.mlp.gate_up[e].chunk(2)
            state[f"{p}mlp.experts.{e}.gate_proj.weight"] = gate
            state[f"{p}mlp.experts.{e}.up_proj.weight"] = up
            state[f"{p}mlp.experts.{e}.down_proj.weight"] = layer.mlp.down[e]
    return {name: tensor.detach().to(torch.bfloat16).contiguous() for name, tensor in state.items()}


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin
