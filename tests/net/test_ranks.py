"""Ranks of the benchmark on two hosts: what their ledgers count crosses the network, and is what the formula says."""

from collections.abc import Iterator

import pytest
import torch

from smoe.bench.comm.cases import BASE, BEST, DEDUP, GROUPED, VANILLA, Case, ModelPlan, Work
from smoe.bench.comm.load import LoadPlan, run_load
from smoe.bench.comm.measure import PROBE_BYTES, count, probe, time_pass
from smoe.bench.comm.namespaces import Network
from smoe.bench.comm.ranks import RankError, Ranks
from smoe.core.placement import Placement
from smoe.core.placement_build import contiguous, from_expert_device
from smoe.models.loading import model_folder, open_checkpoint
from tests.collectives.tables import make_tables
from tests.net.conftest import SLOW_MBIT

pytestmark = pytest.mark.net

CASES = (BASE, DEDUP, BEST)
WORK = Work("prefill", ((tuple(range(40, 64)), 0, 0, 0), (tuple(range(90, 100)), 24, 0, 0)))


@pytest.fixture(scope="module")
def placements() -> dict[str, Placement]:
    checkpoint = open_checkpoint("builtin")
    layers = checkpoint.spec.moe_layers
    plain = contiguous(fingerprint=checkpoint.fingerprint, num_experts=64, layers=layers, num_devices=2)
    swapped = 1 - plain.expert2device
    tables = make_tables(2, vocab=checkpoint.spec.vocab, layers=len(layers))
    grouped = from_expert_device(swapped, (32, 32), fingerprint=plain.fingerprint, layers=layers, tables=tables)
    return {VANILLA: plain, GROUPED: grouped}


@pytest.fixture(scope="module")
def ranks(network: Network, placements: dict[str, Placement]) -> Iterator[Ranks]:
    with Ranks(2, network) as started:
        plan = ModelPlan(folder=str(model_folder("builtin")), placements=placements, kv_rows=64)
        started.join(plan, CASES)
        yield started


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_ledgers_of_real_sockets_equal_the_formula(case: Case, ranks: Ranks, placements: dict[str, Placement]) -> None:
    counted = count(ranks, case, WORK, placements[case.placement], 192, torch.bfloat16.itemsize)
    assert counted.equal, (counted.ledger, counted.formula.wire)
    assert counted.classes["host"] == 0
    assert counted.classes["network"] == pytest.approx(counted.total)


def test_a_timed_pass_holds_its_exchanges(ranks: Ranks) -> None:
    timed = time_pass(ranks, DEDUP, WORK, 6)
    assert 0 < timed.comm_s < timed.step_s
    assert 0 < timed.layer_comm_s < timed.comm_s / 6
    assert 0 < timed.dispatch_share < 1


def test_a_probe_takes_as_long_as_its_bytes_do(ranks: Ranks) -> None:
    """And not less, however early one rank comes: each waits for what the other sends."""
    lines, points = probe(ranks, 1)
    assert set(lines) == {"all_to_all", "all_gather"}
    for found in points.values():
        assert [nbytes for nbytes, _ in found] == list(PROBE_BYTES)
        nbytes, seconds = found[-1]
        assert 8e-6 * nbytes / seconds < 1.1 * SLOW_MBIT


def test_a_load_is_answered_in_full(ranks: Ranks) -> None:
    plan = LoadPlan(requests=3, concurrency=2, prompt_tokens=12, new_tokens=4)
    times = run_load(ranks, BEST, [tuple(range(40, 60)), tuple(range(70, 90))], plan)
    assert [each.num_tokens for each in times] == [4, 4, 4]


def test_a_rank_that_fails_says_why(ranks: Ranks) -> None:
    with pytest.raises(RankError, match=r"(?s)^rank 0: .*AttributeError.*'nonsense'"):
        ranks.ask("nonsense")
