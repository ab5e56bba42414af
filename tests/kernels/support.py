"""Scale-free errors, poisoned memory and float64 oracles. Letters: T rows, K inputs or choices, N outputs, D hidden."""

import torch
from torch import Tensor

from smoe.kernels import ExpertTable, ExpertTensors

F32, BF16, F64 = torch.float32, torch.bfloat16, torch.float64
# Largest and RMS error over max(|reference|, rms(reference)). bf16 rounds to 8 bits: half a step is 2**-9 = 2e-3.
TOLERANCE = {F32: (1e-5, 1e-6), BF16: (8e-3, 3e-3)}
DTYPES = [(F32, F32), (F32, BF16), (BF16, F32), (BF16, BF16)]


def errors(actual: Tensor, reference: Tensor) -> tuple[float, float]:
    """Maximum and RMS relative error; infinite if anything is not finite."""
    if not bool(actual.isfinite().all()):
        return float("inf"), float("inf")
    reference = reference.to(F64)
    rms = reference.square().mean().sqrt()
    relative = (actual.to(F64) - reference).abs() / torch.maximum(reference.abs(), rms)
    return float(relative.max()), float(relative.square().mean().sqrt())


def assert_close(actual: Tensor, reference: Tensor, dtype: torch.dtype) -> None:
    """Both errors within the table."""
    worst, rms = errors(actual, reference)
    limit, rms_limit = TOLERANCE[dtype]
    assert worst < limit, f"largest error {worst:.2e}"
    assert rms < rms_limit, f"RMS error {rms:.2e}"


def poison_empty(monkeypatch: object) -> None:
    """torch.empty yields NaN (or -1 for integers), so that an unwritten output shows."""
    empty, empty_like = torch.empty, torch.empty_like

    def filled(tensor: Tensor) -> Tensor:
        return tensor.fill_(float("nan") if tensor.is_floating_point() else -1)

    monkeypatch.setattr(torch, "empty", lambda *a, **k: filled(empty(*a, **k)))  # type: ignore[attr-defined]
    monkeypatch.setattr(torch, "empty_like", lambda *a, **k: filled(empty_like(*a, **k)))  # type: ignore[attr-defined]


def rms_norm64(x: Tensor, factor: Tensor, eps: float) -> Tensor:
    """RMS norm in float64."""
    x = x.to(F64)
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * factor.to(F64)


def misaligned(tensor: Tensor) -> Tensor:
    """A copy that starts one element off an aligned address."""
    flat = torch.empty(tensor.numel() + 1, dtype=tensor.dtype)
    view = flat[1:].view(tensor.shape)
    view.copy_(tensor)
    return view


def random_expert(dim: int, ffn: int, dtype: torch.dtype, bias: bool = False) -> ExpertTensors:
    """Weights of unit gain, biases of unit size, at odd addresses."""
    gate, up = (misaligned((torch.randn(ffn, dim) / dim**0.5).to(dtype)) for _ in range(2))
    down = misaligned((torch.randn(dim, ffn) / ffn**0.5).to(dtype))
    biases = (torch.randn(n).to(dtype) for n in (ffn, ffn, dim)) if bias else (None, None, None)
    return ExpertTensors(gate, up, down, *biases)


def expert64(e: ExpertTensors, x: Tensor, act: str, round_to: torch.dtype) -> Tensor:
    """One expert in float64, its intermediate rounded as the kernels do."""
    gate_bias, up_bias, down_bias = (0 if b is None else b.to(F64) for b in e[3:])
    gate = x.to(F64) @ e.gate.to(F64).T + gate_bias
    up = x.to(F64) @ e.up.to(F64).T + up_bias
    if act == "gptoss":
        gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
        h = (up + 1) * gate * torch.sigmoid(1.702 * gate)
    else:
        h = gate * torch.sigmoid(gate) * up
    if round_to is BF16:
        h = h.to(BF16)
    return h.to(F64) @ e.down.to(F64).T + down_bias


def moe64(x: Tensor, slots: Tensor, ids: Tensor, weights: Tensor, table: ExpertTable) -> Tensor:
    """The mixture in float64, row by row."""
    y = torch.zeros(x.shape, dtype=F64)
    for t in range(len(x)):
        for slot, weight in zip(slots[t].tolist(), weights[t].to(F64), strict=True):
            if slot >= 0:
                y[t] += weight * expert64(table.tensors(slot), x[t : t + 1], table.act, x.dtype)[0]
    return y
