"""Two raylets on two hosts serve one model over a slow link: the tokens of one process, ranks killed or not."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from smoe.bench.comm.namespaces import Network
from tests.actors.test_parallel import expected, placement
from tests.net.conftest import SLOW_MBIT
from tests.net.raylets import Raylets, raylets

pytestmark = [pytest.mark.net, pytest.mark.ray]

__all__ = ["expected", "placement"]


@pytest.fixture(scope="module")
def cluster(can_network: None) -> Iterator[Raylets]:
    with Network(2) as network:
        network.shape(SLOW_MBIT)
        with raylets(network) as started:
            yield started


def tokens(answer: dict) -> dict[str, tuple[int, ...]]:
    return {name: tuple(ids) for name, ids in answer["tokens"].items()}


@pytest.mark.parametrize(
    "schedule",
    [pytest.param("allreduce", marks=pytest.mark.slow), pytest.param("scatter", marks=pytest.mark.slow), "speculative"],
)
def test_two_hosts_give_the_tokens_of_one_process(
    schedule: str, cluster: Raylets, placement: Path, expected: dict[str, tuple[int, ...]]
) -> None:
    answer = json.loads(cluster.run("-m", "tests.net.program", "answers", schedule, str(placement)).splitlines()[-1])
    assert tokens(answer) == expected
    assert sorted(answer["hosts"]) == list(cluster.hosts)
    assert answer["generation"] == 1


def test_a_rank_killed_on_the_other_host_is_replaced(cluster: Raylets, expected: dict[str, tuple[int, ...]]) -> None:
    answer = json.loads(cluster.run("-m", "tests.net.program", "killed").splitlines()[-1])
    assert tokens(answer) == expected
    assert sorted(answer["hosts"]) == list(cluster.hosts)
    assert answer["generation"] == 2
