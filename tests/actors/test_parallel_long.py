"""Long answers over 1, 2, 4 and 8 ranks: the same ids, token by token."""

from pathlib import Path

import pytest

from smoe.actors.client import open_ray_client
from smoe.core.client import EngineClient
from smoe.core.config import EngineConfig
from smoe.core.parallel import ParallelConfig
from smoe.core.request import Request
from smoe.core.sampling import SamplingParams
from tests.actors.test_parallel import random_placement

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("local_ray")]

PROMPTS = ("Once upon a time", "def main():\n", "The king said to", "2 + 3 =")
LENGTH = 256


def answers(client: EngineClient) -> list[tuple[int, ...]]:
    params = SamplingParams(max_tokens=LENGTH, temperature=0.0, ignore_eos=True)
    prompts = [tuple(client.encode_text(prompt)) for prompt in PROMPTS]
    client.submit([Request(request_id=str(i), prompt_token_ids=p, params=params) for i, p in enumerate(prompts)])
    found: list[tuple[int, ...]] = [() for _ in PROMPTS]
    while deltas := client.poll():
        for delta in deltas:
            assert delta.finish_reason in (None, "length"), delta
            found[int(delta.request_id)] += delta.token_ids
    return found


def over(ranks: int, **parallel: object) -> list[tuple[int, ...]]:
    spread = ParallelConfig(tensor_parallel_size=ranks, **parallel)  # type: ignore[arg-type]
    client = open_ray_client(EngineConfig(dtype="float32", max_model_len=512, threads=1, parallel=spread))
    try:
        return answers(client)
    finally:
        client.shutdown()


@pytest.fixture(scope="module")
def alone(local_ray: None) -> list[tuple[int, ...]]:
    return over(1)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("schedule", ["scatter", "allreduce", "speculative"])
@pytest.mark.parametrize(("ranks", "groups"), [(2, 1), (4, 1), (2, 4)])
def test_long_greedy_answers_are_those_of_one_rank(
    alone: list[tuple[int, ...]], ranks: int, groups: int, schedule: str, tmp_path: Path
) -> None:
    assert [len(tokens) for tokens in alone] == [LENGTH] * len(PROMPTS)
    placement = random_placement(tmp_path / "random", ranks * groups)
    assert over(ranks, data_parallel_size=groups, schedule=schedule, placement=placement) == alone
