"""One model over several actors: the tokens of one process, whatever the schedule; a killed rank costs nothing."""

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest

from smoe.actors.client import RayClient, group_plan, open_ray_client
from smoe.core.cluster_config import ClusterConfig
from smoe.core.config import EngineConfig
from smoe.core.errors import ConfigError, SmoeError
from smoe.core.parallel import ParallelConfig
from smoe.core.placement_build import contiguous, from_expert_device
from smoe.core.placement_file import write_placement
from smoe.core.request import Request
from smoe.core.sampling import SamplingParams
from smoe.engine.build import build_local_client
from smoe.models.loading import open_checkpoint
from tests.actors import killers
from tests.actors.test_deployment import shm_of
from tests.collectives.tables import make_tables

pytestmark = [pytest.mark.ray, pytest.mark.xdist_group("ray")]

PROMPTS = ("Once upon a time", "def main():\n", "User: I want", "2 + 3 =")
SIZE = 2


def requests(client: object, max_tokens: int) -> list[Request]:
    params = SamplingParams(max_tokens=max_tokens, temperature=0.0)
    return [
        Request(request_id=str(i), prompt_token_ids=tuple(client.encode_text(prompt)), params=params)  # type: ignore[attr-defined]
        for i, prompt in enumerate(PROMPTS)
    ]


def answers(
    client: object, max_tokens: int = 24, news: Callable[[dict[str, tuple[int, ...]]], None] = lambda found: None
) -> dict[str, tuple[int, ...]]:
    """`news` sees the tokens so far after each poll."""
    client.submit(requests(client, max_tokens))  # type: ignore[attr-defined]
    found: dict[str, tuple[int, ...]] = {str(i): () for i in range(len(PROMPTS))}
    left = set(found)
    while left:
        for delta in client.poll(60.0):  # type: ignore[attr-defined]
            found[delta.request_id] += delta.token_ids
            if delta.finish_reason is not None:
                assert delta.finish_reason in ("length", "stop"), delta
                left.discard(delta.request_id)
        news(found)
    return found


def answers_after_a_loss(
    client: RayClient, when: Callable[[Iterable[tuple[int, ...]]], bool]
) -> dict[str, tuple[int, ...]]:
    """Rank 1 is killed once, as soon as any or all requests (`when`) have a token."""
    killed = []

    def kill(found: dict[str, tuple[int, ...]]) -> None:
        if not killed and when(found.values()):
            killed.append(client.shard_pids()[1])
            os.kill(killed[0], signal.SIGKILL)

    return answers(client, news=kill)


def random_placement(folder: Path, devices: int) -> str:
    """Experts and tokens anywhere: what no token may depend on."""
    checkpoint = open_checkpoint("builtin")
    spec, rng = checkpoint.spec, np.random.default_rng(0)
    experts = spec.moe(spec.moe_layers[0]).router.num_experts
    device = np.stack([rng.permutation(np.arange(experts) % devices) for _ in spec.moe_layers]).astype(np.int16)
    made = from_expert_device(
        device,
        fingerprint=checkpoint.fingerprint,
        layers=spec.moe_layers,
        slots_of_device=(experts // devices,) * devices,
        tables=make_tables(devices, vocab=spec.vocab, layers=len(spec.moe_layers)),
    )
    write_placement(folder, made)
    return str(folder)


@contextmanager
def opened(config: EngineConfig) -> Iterator[RayClient]:
    client = open_ray_client(config)
    try:
        yield client
    finally:
        client.shutdown()


def config(**parallel: object) -> EngineConfig:
    spread = ParallelConfig(tensor_parallel_size=SIZE, **parallel)  # type: ignore[arg-type]
    return EngineConfig(dtype="float32", max_model_len=256, threads=1, parallel=spread)


@pytest.fixture(scope="module")
def expected() -> dict[str, tuple[int, ...]]:
    client = build_local_client(EngineConfig(dtype="float32", max_model_len=256, threads=1))
    try:
        return answers(client)
    finally:
        client.shutdown()


@pytest.fixture(scope="module")
def placement(tmp_path_factory: pytest.TempPathFactory) -> str:
    return random_placement(tmp_path_factory.mktemp("placements") / "random", SIZE)


@pytest.mark.usefixtures("local_ray")
@pytest.mark.parametrize("schedule", ["allreduce", "speculative"])
def test_two_ranks_give_the_tokens_of_one_process(
    schedule: str, placement: str, expected: dict[str, tuple[int, ...]]
) -> None:
    with opened(config(schedule=schedule, placement=placement)) as client:
        assert answers(client) == expected
        assert len(set(client.shard_pids())) == SIZE


@pytest.mark.usefixtures("local_ray")
def test_ranks_that_keep_a_part_of_their_experts_do_too_and_are_resized_together(
    placement: str, expected: dict[str, tuple[int, ...]]
) -> None:
    whole = config(schedule="scatter", placement=placement)
    with opened(replace(whole, expert_memory="25%", expert_memory_max="50%")) as client:
        assert client.info().expert_tiers == ("disk",)
        assert answers(client) == expected
        before = client.stats().experts
        assert client.resize_experts("50%") == 6 * 32
        with pytest.raises(ConfigError, match=r"^expert_memory: '60%' \(up to expert_memory_max: 192 slots"):
            client.resize_experts("60%")
        assert answers(client) == expected
        stats, info = client.stats(), client.info()
        after = stats.experts
        # Of both ranks together: twice as many slots as before, each of the same size.
        assert after.budget_bytes == 2 * before.budget_bytes
        assert after.misses > before.misses > 0
        assert before.peak_bytes == before.budget_bytes
        # Each answer's last token was sampled and never went in.
        rows = stats.prompt_tokens + stats.generated_tokens - 2 * len(expected)
        choices_a_layer = rows * info.top_k
        assert [sum(load) for load in stats.routing.loads] == [choices_a_layer] * len(info.moe_layers)
        assert sum(stats.routing.by_device) == stats.routing.choices
        assert len(stats.routing.by_device) == SIZE
        assert 0 < stats.routing.local < stats.routing.choices
        assert stats.traffic.host_bytes > 0 == stats.traffic.network_bytes
        assert stats.traffic.busy_s > 0


@pytest.mark.usefixtures("local_ray")
def test_a_rank_may_die_at_any_point(expected: dict[str, tuple[int, ...]], tmp_path: Path) -> None:
    """Between dispatch and combine, of a prompt and of single tokens, and while it is loaded again."""
    plan = replace(group_plan(config(), ClusterConfig()), build=partial(killers.build, str(tmp_path)))
    before = set(os.listdir("/dev/shm"))
    client = RayClient(config(), plan)
    try:
        assert answers(client) == expected
        assert client.state().generation == 1 + len(killers.LIVES)
        assert client.state().phase == "running"
        pids = client.shard_pids()
    finally:
        client.shutdown()
    pids += [int(path.name.split("-")[1]) for path in tmp_path.iterdir()]
    assert len(set(pids)) == SIZE + len(killers.LIVES)
    processes = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    _, alive = psutil.wait_procs(processes, timeout=30)
    assert not alive
    assert not shm_of(set(pids), before)


@pytest.mark.usefixtures("local_ray")
@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"tensor_parallel_size": 7}, r"^tensor_parallel_size: 7 \(one of 1, 2, 3, 4, 5, 6, by the heads"),
        ({"placement": "nowhere"}, r"nowhere"),
    ],
)
def test_what_no_rank_could_load_is_refused_before_any_starts(change: dict[str, object], match: str) -> None:
    spread = ParallelConfig(**{"tensor_parallel_size": SIZE, **change})  # type: ignore[arg-type]
    with pytest.raises(SmoeError, match=match):
        open_ray_client(EngineConfig(parallel=spread))


@pytest.mark.usefixtures("local_ray")
def test_a_placement_for_other_devices_is_refused(tmp_path: Path) -> None:
    checkpoint = open_checkpoint("builtin")
    spec = checkpoint.spec
    experts = spec.moe(spec.moe_layers[0]).router.num_experts
    made = contiguous(fingerprint=checkpoint.fingerprint, num_experts=experts, layers=spec.moe_layers, num_devices=4)
    write_placement(tmp_path / "four", made)
    with pytest.raises(ConfigError, match=r"^placement: .*four' \(2 devices; it was made for 4\)$"):
        open_ray_client(config(placement=str(tmp_path / "four")))


def test_one_process_cannot_be_several_devices() -> None:
    with pytest.raises(ConfigError, match=r"^tensor_parallel_size: 2 \(1 in one process"):
        build_local_client(config())
