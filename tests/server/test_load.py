"""Load: many clients, some of which leave or send nonsense, and a device that dies; nothing lost, nothing kept."""

import asyncio
import os
import time
from collections.abc import Callable

import httpx
import psutil
import pytest

from smoe.bench.slo.child import own_server
from tests.server.storm import Storm, Tally

LEVELS = ("smoe:num_requests_running", "smoe:num_requests_waiting", "smoe:kv_cache_usage_perc")
SECONDS = float(os.environ.get("SMOE_LOAD_SECONDS", "600"))
JUDGED_FROM_S = 300
"""A shorter run is warm-up to its end, so it says nothing about growth."""
MOST_GROWTH_PER_MINUTE = 5e6


def levels(url: str) -> dict[str, float]:
    lines = httpx.get(f"{url}/metrics", timeout=30).raise_for_status().text.splitlines()
    found = {line.split()[0].partition("{")[0]: float(line.split()[-1]) for line in lines if line.startswith(LEVELS)}
    assert set(found) == set(LEVELS)
    return found


def comes_to_rest(url: str) -> bool:
    """Within a minute no request runs or waits and no row is held. Each look waits for the server's answer."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if not any(levels(url).values()):
            return True
    return False


def check(tally: Tally, at_least: int) -> None:
    assert not tally.wrong, f"{len(tally.wrong)} of {tally.total}: {tally.wrong[:5]}"
    assert tally.total >= at_least
    for kind in ("streamed", "whole", "left a stream", "left", "bad 400", "bad 404", "bad 422"):
        assert tally.seen[kind], f"no request was {kind}: {tally.seen}"


def test_a_short_storm_leaves_nothing_behind() -> None:
    flags = ["--in-process", "--threads", "1", "--max-num-seqs", "8", "--max-queue", "24"]
    with own_server(flags) as url:
        storm = Storm(url, "builtin", clients=16, seed=1, go_on=lambda sent: sent < 80)
        check(asyncio.run(storm.blow()), at_least=80)
        assert comes_to_rest(url)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(0)
def test_ten_minutes_of_64_clients_and_a_dead_shard(capsys: pytest.CaptureFixture[str]) -> None:
    with own_server(["--max-num-seqs", "32"]) as url:
        asyncio.run(Storm(url, "builtin", clients=64, seed=2, go_on=lambda sent: sent < 500).blow())  # warms up
        memory = Memory()
        tally, samples = asyncio.run(_storm(url, memory.bytes))
        assert comes_to_rest(url)
        assert httpx.get(f"{url}/health").json()["status"] == "ok"
        assert len(_actors("ray::Shard")) == 1
    growth = _slope(samples) * 60
    with capsys.disabled():
        print(f"\n{dict(tally.seen)} in {SECONDS:g} s; memory {growth / 1e6:+.2f} MB a minute")
    check(tally, at_least=64)
    assert SECONDS < JUDGED_FROM_S or growth < MOST_GROWTH_PER_MINUTE, samples


class Memory:
    """Of the processes in which requests are: front, replicas, engines, shards."""

    def bytes(self) -> int:
        return sum(self._rss(child) for child in _actors())

    def _rss(self, process: psutil.Process) -> int:
        try:
            return int(process.memory_full_info().uss)
        except psutil.NoSuchProcess:
            return 0


def _actors(name: str = "ray::") -> list[psutil.Process]:
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            if child.name().startswith(name) or name in " ".join(child.cmdline()):
                found.append(child)
        except psutil.NoSuchProcess:
            continue
    return found


async def _storm(url: str, memory: Callable[[], int]) -> tuple[Tally, list[tuple[float, int]]]:
    """A shard dies after a quarter of the time; memory is sampled over the last half."""
    begun = time.monotonic()
    storm = Storm(url, "builtin", clients=64, seed=3, go_on=lambda _: time.monotonic() - begun < SECONDS)
    samples: list[tuple[float, int]] = []

    async def watch() -> None:
        await asyncio.sleep(SECONDS / 4)
        shards = _actors("ray::Shard")
        assert shards, [" ".join(child.cmdline())[:60] for child in _actors("ray")]
        shards[0].kill()
        await asyncio.sleep(SECONDS / 4)
        while True:
            samples.append((time.monotonic() - begun, await asyncio.to_thread(memory)))
            await asyncio.sleep(SECONDS / 120)

    watcher = asyncio.ensure_future(watch())
    try:
        return await storm.blow(), samples
    finally:
        watcher.cancel()
        if watcher.done():
            watcher.result()


def _slope(samples: list[tuple[float, int]]) -> float:
    """Bytes a second, by least squares."""
    middle_t = sum(t for t, _ in samples) / len(samples)
    middle_y = sum(y for _, y in samples) / len(samples)
    return sum((t - middle_t) * (y - middle_y) for t, y in samples) / sum((t - middle_t) ** 2 for t, _ in samples)
