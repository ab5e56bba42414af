"""How near the operations come to what the device's memory allows."""

import torch

from smoe.bench.gpu.timing import seconds
from smoe.bench.result import Figure, Result
from smoe.kernels import ExpertTable, ExpertTensors, Linear, moe

HIDDEN, FFN, EXPERTS, TOP_K = 2048, 1024, 64, 8
BUFFER_BYTES = 1 << 30


def measure(device: torch.device, result: Result) -> None:
    """Device read bandwidth, then the share of it that a projection and the experts reach at one row."""
    buffer = torch.ones(BUFFER_BYTES // 4, device=device)
    bandwidth = BUFFER_BYTES / seconds(lambda: buffer.sum())
    result.add(Figure(figure="device memory read", value=bandwidth / 1e9, unit="GB/s", bound="a plain reduction"))
    x_1D = torch.randn(1, HIDDEN, device=device, dtype=torch.bfloat16)
    weight = torch.randn(4 * HIDDEN, HIDDEN, device=device, dtype=torch.bfloat16)
    linear = Linear(weight)
    _share("Linear 8192 x 2048, one row", weight.nbytes, seconds(lambda: linear(x_1D)), bandwidth, result)
    table = ExpertTable(EXPERTS, HIDDEN, FFN, act="silu")
    shapes = ((FFN, HIDDEN), (FFN, HIDDEN), (HIDDEN, FFN))
    for slot in range(EXPERTS):
        gate, up, down = (torch.randn(s, device=device, dtype=torch.bfloat16) for s in shapes)
        table.set(slot, ExpertTensors(gate, up, down))
    ids_1K = torch.arange(TOP_K, device=device, dtype=torch.int32).view(1, TOP_K)
    weights_1K = torch.full((1, TOP_K), 1 / TOP_K, device=device)
    took = seconds(lambda: moe(x_1D, ids_1K, ids_1K, weights_1K, table))
    _share("experts, 8 of 64, one row", TOP_K * 3 * HIDDEN * FFN * 2, took, bandwidth, result)


def _share(name: str, nbytes: int, took_s: float, bandwidth: float, result: Result) -> None:
    share = nbytes / bandwidth / took_s
    bound = f"{nbytes / 1e6:.1f} MB read once: {1e6 * nbytes / bandwidth:.0f} us"
    result.add(Figure(figure=f"{name}: time", value=1e6 * took_s, unit="us", bound=bound))
    result.add(Figure(figure=f"{name}: share of the read bound", value=100 * share, unit="%"))
