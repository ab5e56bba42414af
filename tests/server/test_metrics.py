"""/metrics over a real engine, and over a client that says what it is told to say."""

import asyncio
import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from smoe.core.client import EngineHealth
from smoe.core.errors import ConfigError, StartupError
from smoe.core.model_info import ModelInfo
from smoe.core.request import Delta, Request, Usage
from smoe.core.stats import DraftStats, EngineStats, ExpertStats, RoutingStats, TrafficStats
from smoe.server.app import make_app
from smoe.server.config import ServerConfig
from tests.server.test_app import GREEDY, serve

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


async def samples(client: httpx.AsyncClient, **headers: str) -> Samples:
    answer = await client.get("/metrics", headers=headers)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def value(found: Samples, name: str, **labels: str) -> float:
    return found[(f"smoe:{name}", tuple(sorted(labels.items())))]


def counts(found: Samples) -> Samples:
    return {key: count for key, count in found.items() if key[0].endswith(("_total", "_bucket", "_count", "_sum"))}


def test_counts_are_those_of_the_answers_and_only_grow() -> None:
    async def body(client: httpx.AsyncClient, engine: Any) -> None:
        first = await samples(client)
        assert value(first, "num_requests_running") == value(first, "generation_tokens_total") == 0
        ask = {**GREEDY, "prompt": ["Once upon a time", "def main():"]}
        usage = (await client.post("/v1/completions", json=ask)).json()["usage"]
        assert (await client.post("/v1/completions", json={**ask, "n": 0})).status_code == 422
        found = await samples(client)
        assert value(found, "prompt_tokens_total") == usage["prompt_tokens"]
        assert value(found, "generation_tokens_total") == usage["completion_tokens"] == 24
        assert value(found, "request_success_total", finished_reason="length") == 2
        assert value(found, "time_to_first_token_seconds_count") == 2
        assert value(found, "time_to_first_token_seconds_bucket", le="+Inf") == 2
        assert value(found, "inter_token_latency_seconds_count") == 22
        assert value(found, "request_generation_tokens_sum") == 24
        assert value(found, "http_responses_total", status="422") == 1
        info = engine.client.info()
        rows = usage["total_tokens"] - 2
        assert value(found, "routed_choices_total") == rows * info.top_k * len(info.moe_layers)
        assert value(found, "local_choices_total") == value(found, "routed_choices_total")
        assert 1 <= value(found, "expert_load_max_over_mean", layer=str(info.moe_layers[0])) <= info.num_experts
        before, kinds = counts(found), {name for name, _ in found}
        for seed in range(25):
            prompt = [random.Random(seed).randrange(100) for _ in range(1 + seed)]
            asked = {**GREEDY, "prompt": prompt, "max_tokens": 1 + seed % 3, "n": 1 + seed % 2, "stream": seed % 2 == 1}
            for path in ("/v1/completions", f"/v1/{seed}"):
                await client.post(path, json=asked)
            if seed % 5 == 0:
                after = counts(await samples(client))
                assert all(after[key] >= before[key] for key in before)
                before = after
        last = await samples(client)
        new = {key for key in last if key not in found}
        # Fifty different requests: the only new series is a status code that had not been there.
        assert new == {("smoe:http_responses_total", (("status", "404"),))}
        assert {name for name, _ in last} == kinds
        assert len(last) < 350

    serve(body)


def test_every_metric_has_help_and_the_key_is_needed() -> None:
    async def body(client: httpx.AsyncClient, engine: Any) -> None:
        assert (await client.get("/metrics")).status_code == 401
        key = {"authorization": "Bearer secret"}
        text = (await client.get("/metrics", headers=key)).text
        families = list(text_string_to_metric_families(text))
        assert len(families) > 50
        for family in families:
            assert family.name.startswith("smoe:")
            assert family.documentation.endswith("."), family.name
        found = await samples(client, **key)
        assert value(found, "http_responses_total", status="401") == 1
        assert (await client.delete("/metrics", headers=key)).status_code == 405

    serve(body, ServerConfig(api_key="secret"))


def test_a_reset_begins_counts_anew_and_keeps_levels() -> None:
    async def body(client: httpx.AsyncClient, engine: Any) -> None:
        await client.post("/v1/completions", json={**GREEDY, "prompt": "Once upon a time"})
        before = await samples(client)
        assert (await client.delete("/metrics")).status_code == 204
        after = await samples(client)
        assert not [key for key, count in counts(after).items() if count and key[0] != "smoe:http_responses_total"]
        assert value(after, "http_responses_total", status="204") == 1
        assert value(after, "kv_cache_rows") == value(before, "kv_cache_rows") > 0
        assert value(after, "counting_since_seconds") > value(before, "counting_since_seconds")
        await client.post("/v1/completions", json={**GREEDY, "prompt": "Once upon a time"})
        again = await samples(client)
        for name in ("generation_tokens_total", "expert_uses_total", "time_to_first_token_seconds_count"):
            labels = {"outcome": "hit"} if name == "expert_uses_total" else {}
            assert value(again, name, **labels) == value(before, name, **labels) > 0

    serve(body, ServerConfig(metrics_reset=True))


def test_a_reset_of_one_replica_of_several_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^metrics_reset: True \(false with several replicas"):
        ServerConfig(metrics_reset=True, replicas=2)


INFO = ModelInfo(
    name="fake",
    family="fake",
    fingerprint="f" * 8,
    dtype="float32",
    vocab_size=100,
    max_model_len=512,
    num_layers=3,
    moe_layers=(1, 2),
    num_experts=4,
    top_k=2,
    expert_bytes=8,
    dense_bytes=8,
    eos_token_ids=(),
    has_tokenizer=False,
)
RUNNING = EngineHealth("running")
STATS = EngineStats(
    waiting=3,
    running=2,
    prompt_tokens=100,
    generated_tokens=50,
    steps=20,
    kv_rows_used=25,
    kv_rows_total=100,
    experts=ExpertStats(hits=7, late=2, cold_misses=4, collision_misses=1, disk_bytes=64, disk_s=0.5, host_bytes=32),
    peak_rss_bytes=9,
    rss_bytes=8,
    draft=DraftStats(windows=5, drafted=20, accepted=15),
    routing=RoutingStats(loads=((1, 2, 3, 2), (0, 8, 0, 0)), by_device=(12, 4), local=10),
    traffic=TrafficStats(calls=6, host_bytes=128, network_bytes=256, busy_s=1.5),
)


@dataclass
class ToldClient:
    """An EngineClient that answers each request with one token; what else it says is set from outside."""

    told: EngineStats = STATS
    phase: EngineHealth = RUNNING
    lost: bool = False
    gate: threading.Event = field(default_factory=threading.Event)
    pending: list[Delta] = field(default_factory=list)
    asked: int = 0
    closed: bool = False

    def __post_init__(self) -> None:
        self.gate.set()

    def info(self) -> ModelInfo:
        return INFO

    def submit(self, requests: Sequence[Request]) -> None:
        usage = Usage(1, 1)
        self.pending += [
            Delta(request_id=r.request_id, text="a", token_ids=(1,), finish_reason="length", usage=usage)
            for r in requests
        ]

    def poll(self, timeout_s: float | None = None) -> list[Delta]:
        found, self.pending = self.pending, []
        return found

    def stats(self) -> EngineStats:
        self.asked += 1
        self.gate.wait()
        if self.lost:
            raise StartupError("the engine process died")
        return self.told

    def health(self) -> EngineHealth:
        if self.closed:
            raise RuntimeError("the engine has been shut down")
        return self.phase

    def shutdown(self) -> None:
        self.closed = True


def told(body: Any, client: ToldClient, config: ServerConfig | None = None) -> None:
    async def run() -> None:
        app = make_app(lambda: client, "m", config or ServerConfig())  # type: ignore[arg-type, return-value]
        async with app.router.lifespan_context(app):
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://server") as http:
                while (await http.get("/health")).status_code != 200:
                    await asyncio.sleep(0)
                await body(http, app.state.engine)

    asyncio.run(run())


def test_engine_counts_come_out_under_their_names() -> None:
    async def body(http: httpx.AsyncClient, engine: Any) -> None:
        found = await samples(http)
        assert value(found, "num_requests_waiting") == 3
        assert value(found, "kv_cache_usage_perc") == 0.25
        uses = [value(found, "expert_uses_total", outcome=o) for o in ("hit", "late", "cold_miss", "collision_miss")]
        assert uses == [7, 2, 4, 1]
        links = [value(found, "link_bytes_total", link=link) for link in ("disk", "host", "devices", "network")]
        assert links == [64, 32, 128, 256]
        assert value(found, "link_busy_seconds_total", link="disk") == 0.5
        assert value(found, "exchange_seconds_total") == 1.5
        assert value(found, "local_choices_total") / value(found, "routed_choices_total") == 10 / 16
        assert [value(found, "device_choices_total", device=d) for d in "01"] == [12, 4]
        balance = [value(found, "expert_load_max_over_mean", layer=layer) for layer in "12"]
        assert balance == [1.5, 4.0]
        assert value(found, "spec_decode_num_accepted_tokens_total") == 15
        assert value(found, "engine_phase", phase="running") == 1
        assert value(found, "model_info", model="m") == 1

    told(body, ToldClient())


def test_health_says_degraded_and_failed_and_metrics_say_it_too() -> None:
    client = ToldClient()

    async def body(http: httpx.AsyncClient, engine: Any) -> None:
        assert (await http.get("/health")).json() == {"status": "ok", "in_flight": 0}
        client.phase = EngineHealth("restarting", "start 2, after: shard 0 ended")
        answer = await http.get("/health")
        assert (answer.status_code, answer.json()["status"]) == (200, "degraded")
        assert answer.json()["detail"] == "start 2, after: shard 0 ended"
        assert value(await samples(http), "engine_phase", phase="restarting") == 1
        client.lost, client.phase = True, EngineHealth("failed", "the shards died 4 times")
        answer = await http.get("/health")
        assert (answer.status_code, answer.json()["status"]) == (503, "failed")
        assert answer.headers["retry-after"] == "1"
        assert "the shards died 4 times" in answer.json()["error"]
        # The engine's counts stay as they were last.
        found = await samples(http)
        assert value(found, "engine_phase", phase="failed") == 1
        assert value(found, "generation_tokens_total") == 50
        while engine.phase == "running":  # the thread that polls sees it too
            await asyncio.sleep(0)
        assert engine.failure == "the engine has failed: the shards died 4 times"
        await engine.close()
        assert client.closed
        answer = await http.get("/health")  # as long as somebody still listens
        assert (answer.status_code, answer.json()["status"]) == (503, "failed")

    told(body, client)
    assert client.closed


def test_scrapes_of_an_engine_that_hangs_share_one_question(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smoe.server.metrics._STATS_S", 0.0)
    client = ToldClient()

    async def body(http: httpx.AsyncClient, engine: Any) -> None:
        client.gate.clear()
        try:
            for found in await asyncio.gather(*(samples(http) for _ in range(8))):
                assert ("smoe:generation_tokens_total", ()) not in found
                assert value(found, "engine_phase", phase="running") == 1
        finally:
            client.gate.set()
        assert client.asked == 1
        found = {}
        while ("smoe:generation_tokens_total", ()) not in found:
            found = await samples(http)
        assert value(found, "generation_tokens_total") == 50

    told(body, client)


def test_replicas_at_one_address_are_told_apart() -> None:
    async def body(http: httpx.AsyncClient, engine: Any) -> None:
        found = await samples(http)
        replicas = {dict(labels)["replica"] for _, labels in found}
        assert len(replicas) == 1
        assert len(replicas.pop()) == 8

    told(body, ToldClient(), ServerConfig(replicas=2))
