"""What a server says at /metrics, made of numbers."""

from dataclasses import replace
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from smoe.core.stats import DraftStats, EngineStats, ExpertStats, RoutingStats, TrafficStats
from smoe.metrics.prometheus import ServerState, families
from smoe.metrics.request_meter import RequestMeter

STATS = EngineStats(
    waiting=3,
    running=2,
    prompt_tokens=100,
    generated_tokens=50,
    steps=20,
    kv_rows_used=25,
    kv_rows_total=100,
    experts=ExpertStats(
        hits=60,
        late=10,
        cold_misses=25,
        collision_misses=5,
        prefetched=40,
        prefetch_used=20,
        wasted=4,
        wait_s=2.5,
        disk_bytes=64_000_000,
        disk_s=5.0,
        budget_bytes=1_000_000,
    ),
    peak_rss_bytes=9_000_000,
    rss_bytes=8_000_000,
    draft=DraftStats(windows=5, drafted=20, accepted=15),
    routing=RoutingStats(loads=((1, 2, 3, 2), (0, 8, 0, 0)), by_device=(12, 4), local=12),
    traffic=TrafficStats(calls=6, host_bytes=128, network_bytes=20_000_000, busy_s=4.0),
)
STATE = ServerState(
    model="m",
    phase="running",
    since_s=1000.0,
    responses={200: 4, 404: 1},
    requests=RequestMeter(),
    engine=STATS,
    moe_layers=(1, 2),
)


class _Once:
    def __init__(self, state: ServerState) -> None:
        self._state = state

    def collect(self) -> Any:
        return families(self._state)


def page(**values: Any) -> str:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Once(replace(STATE, **values)))
    return generate_latest(registry).decode()
