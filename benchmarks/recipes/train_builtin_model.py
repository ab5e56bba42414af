"""Trains the built-in model: a small Qwen3-MoE whose routing is learnt.

    python benchmarks/recipes/train_builtin_model.py TEXT_DIR OUT_DIR --minutes 105

TEXT_DIR holds <domain>.txt.gz and <domain>.heldout.txt.gz, one text a domain. OUT_DIR becomes a folder that
transformers and smoe load: config.json, model.safetensors, tokenizer files, and training.json with the held-out loss.
The schedule is cosine over as many steps as fit into --minutes, or over --steps.
"""

import argparse
import json
import math
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from builtin_model import CONFIG, EXPERTS, Model, checkpoint_tensors
from builtin_text import draw, tokenise
from safetensors.torch import save_file
from torch import nn

WARMUP_STEPS, EVALUATE_EVERY, REPORT_EVERY = 100, 400, 50
BALANCE_WEIGHT, Z_WEIGHT = 0.01, 1e-4


def main() -> None:
    args = _arguments()
    torch.manual_seed(0)
    args.out.mkdir(parents=True, exist_ok=True)
    texts = tokenise(args.text_dir, args.out)
    train = {name: ids for name, ids in texts.items() if not name.endswith(".heldout")}
    held = {name: ids for name, ids in texts.items() if name.endswith(".heldout")}
    print({name: len(ids) for name, ids in texts.items()}, flush=True)

    model = Model()
    optimizer = _optimizer(model, args.lr)
    rng = np.random.default_rng(0)
    # Large domains count less than their size, so that none drowns the others.
    weights = {name: len(ids) ** 0.6 for name, ids in train.items()}
    mix = {name: weight / sum(weights.values()) for name, weight in weights.items()}

    start, step = time.time(), 0
    while True:
        elapsed = time.time() - start
        total = args.steps or (10_000 if step < 20 else int(step / elapsed * args.minutes * 60))
        fraction = min(step / max(total, 1), 1.0)
        if fraction >= 1.0 or (not args.steps and elapsed > args.minutes * 60):
            break
        for group in optimizer.param_groups:
            group["lr"] = args.lr * _schedule(step, fraction)
        report = _step(model, optimizer, draw(train, mix, args.batch, args.seq, rng))
        if step % REPORT_EVERY == 0:
            print(f"step {step}/{total} {elapsed / 60:.1f} min {report}", flush=True)
        if step and step % EVALUATE_EVERY == 0:
            print("   held-out nats/token", _evaluate(model, held, args.seq), flush=True)
            _save(model, args.out)
        step += 1

    _save(model, args.out)
    result = {
        "steps": step,
        "tokens": step * args.batch * args.seq,
        "minutes": (time.time() - start) / 60,
        "heldout_nats_per_token": _evaluate(model, held, args.seq),
    }
    (args.out / "training.json").write_text(json.dumps(result, indent=2))
    print(result, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train the built-in model.")
    parser.add_argument("text_dir", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=105)
    parser.add_argument("--batch", type=int, default=24)
    parser.add_argument("--seq", type=int, default=256)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--steps", type=int, default=0, help="total steps; 0: as many as fit into --minutes")
    return parser.parse_args()


def _optimizer(model: Model, lr: float) -> torch.optim.Optimizer:
    decay = [p for p in model.parameters() if p.dim() >= 2]
    other = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decay, "weight_decay": 0.05}, {"params": other, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), fused=True)


def _schedule(step: int, fraction: float) -> float:
    return min(1, (step + 1) / WARMUP_STEPS) * (0.5 * (1 + math.cos(math.pi * fraction)) * 0.95 + 0.05)


def _step(model: Model, optimizer: torch.optim.Optimizer, ids: torch.Tensor) -> str:
    hidden, balance, z_loss, share = model(ids[:, :-1])
    cross_entropy = F.cross_entropy(model.logits(hidden).float().flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad(set_to_none=True)
    (cross_entropy + BALANCE_WEIGHT * balance + Z_WEIGHT * z_loss).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    busiest, idlest = share.max().item() * EXPERTS, share.min().item() * EXPERTS
    return f"loss {cross_entropy.item():.3f} balance {balance.item():.3f} expert load x{idlest:.2f} to x{busiest:.1f}"


@torch.no_grad()
def _evaluate(model: Model, held: dict[str, np.ndarray], seq: int) -> dict[str, float]:
    """Nats a token by domain, over the same sixteen windows every time."""
    losses = {}
    for name in held:
        ids = draw(held, {name: 1.0}, 16, seq, np.random.default_rng(1))
        hidden, *_ = model(ids[:, :-1])
        loss = F.cross_entropy(model.logits(hidden).flatten(0, 1), ids[:, 1:].flatten())
        losses[name.removesuffix(".heldout")] = loss.item()
    return losses


def _save(model: Model, out: Path) -> None:
    save_file(checkpoint_tensors(model), out / "model.safetensors", metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps(CONFIG, indent=2))


if __name__ == "__main__":
    main()
