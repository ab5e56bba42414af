"""Groups of actors over common experts: the tokens of one process, also after a rank was killed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from smoe.core.config import EngineConfig
from smoe.core.parallel import ParallelConfig
from smoe.engine.build import build_local_client
from tests.actors.test_parallel import answers, answers_after_a_loss, opened, random_placement

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


@pytest.mark.usefixtures("local_ray")
def test_two_groups_of_one_rank_go_on_with_the_same_tokens_after_a_loss(
    one_process: dict[str, tuple[int, ...]], tmp_path: Path
) -> None:
    placement = random_placement(tmp_path / "two", 2)
    with opened(config(placement=placement, data_parallel_routing="tables")) as client:
        assert answers(client) == one_process
        assert answers_after_a_loss(client, all) == one_process
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
