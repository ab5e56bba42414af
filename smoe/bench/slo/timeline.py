"""What a server says of itself while it is under load, polled from /metrics: queue, running, expert hits."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from smoe.bench.slo.client import Target
from smoe.bench.slo.clock import Clock

SERIES: Mapping[str, tuple[tuple[str, str | None], ...]] = {
    "running": (("smoe:num_requests_running", None), ("vllm:num_requests_running", None)),
    "waiting": (("smoe:num_requests_waiting", None), ("vllm:num_requests_waiting", None)),
    "expert_hits": (("smoe:expert_uses_total", "hit"),),
    "expert_uses": (("smoe:expert_uses_total", None),),
}
"""Ours by the names that servers have; where an `outcome` follows, only what has that label."""

Sample = dict[str, float]
"""`at_s` since the beginning, and the series that the server has, each summed over its labels."""


class Timeline:
    def __init__(self) -> None:
        self.samples: list[Sample] = []

    async def _watch(self, target: Target, clock: Clock, every_s: float) -> None:
        """Until cancelled, or until the server shows that it has no such page. A moment at which it is too busy to
        answer has no sample."""
        begun = clock.now_s()
        async with aiohttp.ClientSession(headers=target.headers, timeout=aiohttp.ClientTimeout(total=10)) as session:
            for tick in range(10**9):
                await clock.sleep_until(begun + tick * every_s)
                try:
                    async with session.get(f"{target.root}/metrics") as response:
                        text, status = await response.text(), response.status
                except (aiohttp.ClientError, OSError, TimeoutError):
                    continue
                series = read_series(text) if status == 200 else None
                if status == 404 or series == {}:
                    return
                if series is not None:
                    self.samples.append({"at_s": round(clock.now_s() - begun, 4), **series})


@asynccontextmanager
async def watched(target: Target, clock: Clock, every_s: float) -> AsyncIterator[Timeline]:
    timeline = Timeline()
    task = asyncio.create_task(timeline._watch(target, clock, every_s))
    try:
        yield timeline
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def read_series(text: str) -> dict[str, float]:
    """From Prometheus' text format; nothing of a page that is not in it, or is of something else."""
    try:
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    except ValueError:
        return {}
    found: dict[str, float] = {}
    for short, sources in SERIES.items():
        for name, outcome in sources:
            values = [s.value for s in samples if s.name == name and outcome in (None, s.labels.get("outcome"))]
            if values:
                found[short] = sum(values)
    return found
