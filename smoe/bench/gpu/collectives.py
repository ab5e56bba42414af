"""NCCL at world size 1: that the calls work on this machine, and what one costs."""

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

from smoe.bench.gpu.timing import seconds
from smoe.bench.result import Figure, Result


def measure(device: torch.device, result: Result) -> None:
    """Latency of each collective that the expert-parallel path uses, 1024 rows of 2048 bf16."""
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("nccl", init_method=(Path(folder) / "store").as_uri(), rank=0, world_size=1)
        try:
            rows = torch.randn(1024, 2048, device=device, dtype=torch.bfloat16)
            out = torch.empty_like(rows)
            calls = {
                "all_reduce": lambda: dist.all_reduce(rows),
                "reduce_scatter": lambda: dist.reduce_scatter_tensor(out, rows),
                "all_gather": lambda: dist.all_gather_into_tensor(out, rows),
                "all_to_all": lambda: dist.all_to_all_single(out, rows),
            }
            for name, call in calls.items():
                figure = f"NCCL {name}, world size 1"
                result.add(Figure(figure=figure, value=1e6 * seconds(call), unit="us", bound="4.2 MB"))
        finally:
            dist.destroy_process_group()
