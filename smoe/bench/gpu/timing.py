"""Time of work on a CUDA device, by events."""

from collections.abc import Callable
from statistics import median

import torch


def seconds(work: Callable[[], object], *, repeats: int = 20, warm_up: int = 3) -> float:
    """Median device time of one call of `work`."""
    for _ in range(warm_up):
        work()
    times: list[float] = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        work()
        end.record()
        end.synchronize()
        times.append(float(begin.elapsed_time(end)) / 1000)
    return median(times)
