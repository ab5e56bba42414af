"""Groups of actors over common experts: the tokens of one process, also after a rank was killed."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from smoe.core.config import EngineConfig
from smoe.core.parallel import ParallelConfig
from smoe.core.placement_build import from_expert_device
from smoe.core.placement_file import write_placement
from smoe.engine.build import build_local_client
from smoe.models.loading import open_checkpoint
from tests.actors.test_parallel import PROMPTS, answers, opened, requests
from tests.collectives.tables import make_tables

pytestmark = [pytest.mark.ray, pytest.mark.xdist_group("ray")]


def config(**parallel: object) -> EngineConfig:
    spread = ParallelConfig(data_parallel_size=2, **parallel)  # type: ignore[arg-type]
    return EngineConfig(dtype="float32", max_model_len=256, threads=1, parallel=spread)


@pytest.fixture(scope="module")
def one_process() -> Iterator[dict[str, tuple[int, ...]]]:
    client = build_local_client(EngineConfig(dtype="float32", max_model_len=256, threads=1))
    try:
        yield answers(client)
    finally:
        client.shutdown()


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


@pytest.mark.usefixtures("local_ray")
def test_two_groups_of_one_rank_go_on_with_the_same_tokens_after_a_loss(
    one_process: dict[str, tuple[int, ...]], tmp_path: Path
) -> None:
    placement = random_placement(tmp_path / "two", 2)
    with opened(config(placement=placement, data_parallel_routing="tables")) as client:
        assert answers(client) == one_process
        client.submit(requests(client, 24))
        found: dict[str, tuple[int, ...]] = {str(i): () for i in range(len(PROMPTS))}
        left, killed = set(found), False
        while left:
            for delta in client.poll(60.0):
                found[delta.request_id] += delta.token_ids
                if delta.finish_reason is not None:
                    left.discard(delta.request_id)
            if not killed and all(found.values()):
                os.kill(client.shard_pids()[1], signal.SIGKILL)
                killed = True
        assert found == one_process
        assert client.state().generation == 2


@pytest.mark.usefixtures("local_ray")
def test_two_groups_of_two_ranks_give_the_tokens_of_one_process(
    one_process: dict[str, tuple[int, ...]], tmp_path: Path
) -> None:
    placement = random_placement(tmp_path / "four", 4)
    with opened(config(tensor_parallel_size=2, schedule="speculative", placement=placement)) as client:
        assert answers(client) == one_process
        assert len(set(client.shard_pids())) == 4
        assert client.stats().kv_rows_total % 2 == 0
