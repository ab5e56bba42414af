"""The inflated model, resident, batch 1: share of the time that reading the touched weights once must take."""

from pathlib import Path
from statistics import median

from smoe.bench.bandwidth import read_bandwidth, typical
from smoe.bench.decode.builtin import prompts
from smoe.bench.decode.own import run_batch
from smoe.bench.result import Figure, Result
from smoe.core.client import EngineClient
from smoe.core.model_info import ModelInfo

HIDDEN, EXPERT_FFN = 2048, 1024
GOAL_SHARE = 0.8


def inflated_folder(cache: Path) -> Path:
    """Makes the inflated model once (4.9 GB); later runs find it."""
    from smoe.models.inflate import inflate
    from smoe.models.loading import open_checkpoint

    folder = cache / f"builtin-{HIDDEN}-{EXPERT_FFN}-bf16"
    if not (folder / "config.json").exists():
        partial = folder.with_name(folder.name + ".partial")
        inflate(open_checkpoint("builtin"), partial, hidden=HIDDEN, expert_ffn=EXPERT_FFN, dtype="bfloat16")
        partial.rename(folder)
    return folder


def touched_bytes(info: ModelInfo) -> int:
    """Weight bytes one decode step of one sequence reads: top-k experts of every MoE layer and all else but the
    embedding table, of which it reads one row."""
    embedding = info.vocab_size * HIDDEN * 2
    return len(info.moe_layers) * info.top_k * info.expert_bytes + info.dense_bytes - embedding


def measure(client: EngineClient, *, steps: int, repeats: int, result: Result) -> None:
    """Alternates bandwidth and decode, so that a busy neighbour slows both."""
    info = client.info()
    need = touched_bytes(info)
    bandwidth: list[float] = []
    step_s: list[float] = []
    ids = prompts(1, 32, info.vocab_size, seed=0)
    run_batch(client, ids, 8)
    for _ in range(repeats):
        bandwidth.append(typical(read_bandwidth()))
        step_s.append(median(run_batch(client, ids, steps).step_s))
    shares = [need / b / s for b, s in zip(bandwidth, step_s, strict=True)]
    result.samples["inflated_step_s"] = step_s
    result.samples["inflated_read_bandwidth_bytes_per_s"] = bandwidth
    bound_ms = 1000 * need / median(bandwidth)
    result.add(Figure(figure="inflated bf16 batch 1: decode step", value=1000 * median(step_s), unit="ms"))
    result.add(
        Figure(
            figure="inflated bf16 batch 1: share of the read bound",
            value=100 * median(shares),
            unit="%",
            goal=f">= {100 * GOAL_SHARE:.0f} %",
            met=median(shares) >= GOAL_SHARE,
            bound=f"{need / 1e6:.0f} MB a token at {median(bandwidth) / 1e9:.1f} GB/s = {bound_ms:.1f} ms",
        )
    )
