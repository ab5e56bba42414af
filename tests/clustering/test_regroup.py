"""The job around the layers; with a solver whose answers are known."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from smoe.clustering.layer_job import LayerResult, RouteLayers, solve_layer
from smoe.clustering.regroup import ModelFacts, RegroupJob, finish, job_of_loads, job_of_trace, rows_between
from smoe.clustering.tables import build_tables
from smoe.core.errors import ConfigError, TraceError
from smoe.core.load_table import LoadTable
from smoe.core.regroup_config import RegroupConfig
from smoe.core.route_edit import select_sequences, split
from smoe.core.topology_file import open_topology
from tests.clustering.routes import drawn, trace_of
from tests.clustering.test_layer_job import Asked

TRACE = drawn(400, layers=3, experts=8, vocab=20)


def config(**fields: Any) -> RegroupConfig:
    return RegroupConfig(**{"trace": "t", "devices": 2, "solver": "asked", **fields})


def results(job: RegroupJob) -> list[LayerResult]:
    assert job.fit is not None
    return [solve_layer(layer, job.rules) for layer in RouteLayers(job.fit, range(len(job.layers)))]


def facts(**fields: Any) -> ModelFacts:
    plain: dict[str, Any] = {
        "fingerprint": "f",
        "num_experts": 8,
        "top_k": 2,
        "layers": (0, 1, 2),
        "vocab_size": 30,
        "row_bytes": 64,
        "router_groups": 1,
        "embedding": np.random.default_rng(0).random((30, 4), dtype=np.float32),
    }
    return ModelFacts(**{**plain, **fields})


def test_it_learns_from_some_sequences_and_judges_on_the_others() -> None:
    job = job_of_trace(config(heldout=0.25), Asked(), TRACE)
    assert job.fit is not None
    assert job.heldout is not None
    heldout, fit = split(TRACE, 0.25, seed=0)
    assert np.array_equal(job.fit.token_ids, fit.token_ids)
    assert np.array_equal(job.heldout.token_ids, heldout.token_ids)
    done = finish(job, results(job))
    assert done.evaluation is not None
    assert done.evaluation.tokens == heldout.num_tokens
    tables = build_tables(fit, done.placement.on_device)
    assert done.placement.tables is not None
    assert np.array_equal(done.placement.tables.token_device, tables.token_device)
    assert done.report["config"]["heldout"] == 0.25
    assert finish(job, results(job)).report == done.report


def test_a_model_gives_the_vocabulary_and_the_groups_of_its_router() -> None:
    job = job_of_trace(config(), Asked(), TRACE, model=facts(router_groups=4))
    assert job.rules.expert_group is not None
    assert job.rules.expert_group.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    done = finish(job, results(job))
    assert done.placement.tables is not None
    assert done.placement.tables.vocab_size == 30


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"fingerprint": "g"}, r"t: fingerprint: 'f' \(the model's is 'g'\)"),
        ({"num_experts": 16}, r"t: num_experts: 8 \(the model's is 16\)"),
        ({"top_k": 4}, r"t: top_k: 2 \(the model's is 4\)"),
        ({"layers": (1, 2, 3)}, r"t: layers: \(0, 1, 2\) \(the model's is \(1, 2, 3\)\)"),
        ({"vocab_size": 10}, r"t: token_ids: 19 \(the vocabulary has 10\)"),
    ],
)
def test_a_trace_of_another_model(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(TraceError, match=message):
        job_of_trace(config(), Asked(), TRACE, model=facts(**fields))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"devices": 3}, r"devices: 3 \(8 experts are divided by 2 or 4"),
        ({"router_groups": 3}, r"router_groups: 3 \(a divisor of the 8 experts\)"),
        ({"replicas": 5}, r"replicas: 5 \(0 to the 4 experts that a device lacks\)"),
        ({"vocab_size": 19}, r"t: token_ids: 19 \(the vocabulary has 19\)"),
    ],
)
def test_what_does_not_fit_the_trace(fields: dict[str, Any], message: str) -> None:
    with pytest.raises((ConfigError, TraceError), match=message):
        job_of_trace(config(**fields), Asked(), TRACE)
    with pytest.raises(ConfigError, match=r"topology: .* of 8 devices.* \(2 devices\)"):
        job_of_trace(config(), Asked(), TRACE, topology=open_topology("2x4-pcie-upi"))


def test_too_few_sequences() -> None:
    with pytest.raises(TraceError, match=r"t: 1 sequence \(at least 2"):
        job_of_trace(config(), Asked(), select_sequences(TRACE, [3]))
    with pytest.raises(TraceError, match="t: empty"):
        job_of_trace(config(), Asked(), select_sequences(TRACE, []))


def test_without_token_ids_experts_are_placed_and_no_table_is_written() -> None:
    blind = replace(TRACE, token_ids=np.full(TRACE.num_tokens, -1, dtype=np.int32))
    job = job_of_trace(config(), Asked(), blind)
    done = finish(job, results(job))
    assert done.placement.tables is None
    assert done.evaluation is not None


def test_a_topology_moves_groups_and_never_makes_traffic_dearer() -> None:
    trace = drawn(400, layers=3, experts=16, vocab=20)
    topology = open_topology("2x4-pcie-upi")
    job = job_of_trace(config(devices=8), Asked(), trace, topology=topology)
    plain = finish(job_of_trace(config(devices=8), Asked(), trace), results(job))
    moved = finish(job, results(job))
    assert job.fit is not None
    cost = topology.cost()
    before, after = (float((rows_between(job.fit, each.placement) * cost).sum()) for each in (plain, moved))
    assert after < before
    assert moved.evaluation is not None
    assert plain.evaluation is not None
    assert moved.evaluation.mean_lar["oracle"] == pytest.approx(plain.evaluation.mean_lar["oracle"])
    assert moved.report["topology"]["unit"] == "rows"


def test_copies_fill_the_spare_slots_and_keep_activations_at_home() -> None:
    job = job_of_trace(config(replicas=2), Asked(), TRACE)
    done = finish(job, results(job))
    assert done.placement.slots_of_device == (6, 6)
    assert (done.placement.on_device.sum(axis=(1, 2)) == 12).all()
    assert all(layer["local_after"] >= layer["local_before"] for layer in done.report["replicas"])


def test_loads_alone() -> None:
    load = np.array([[9, 1, 1, 1], [0, 0, 0, 0]])
    job = job_of_loads(RegroupConfig(load="l.csv", devices=2, replicas=1), Asked(), LoadTable(layers=(3, 7), load=load))
    done = finish(job, [solve_layer(layer, job.rules) for layer in load])
    assert done.evaluation is None
    assert (done.placement.layers, done.placement.tables) == ((3, 7), None)
    assert [row["load_imbalance"] for row in done.report["solved"]] == [pytest.approx(10 / 6, abs=1e-5), 1.0]


def test_all_load_on_one_expert() -> None:
    ids = np.zeros((2, 40, 1), dtype=np.int16)
    trace = trace_of(ids, np.arange(40) % 7, experts=4, starts=[0, 10, 20, 30, 40])
    job = job_of_trace(config(), Asked(), trace)
    done = finish(job, results(job))
    assert done.evaluation is not None
    assert done.evaluation.mean_lar["both"] == 1.0
    assert done.evaluation.load_imbalance == (2.0, 2.0)
