"""The utility figures: all of them, from a short trace, and what they say in cases that can be foreseen."""

import json
import math
from dataclasses import asdict

import numpy as np
import pytest

from smoe.bench.speculation.utility import BALANCES, CACHES, measure_utility
from smoe.core.errors import ConfigError
from smoe.core.packaged_traces import open_trace
from smoe.core.route_edit import select_sequences
from smoe.offload.policies.balance import LinearSides
from tests.sim.test_sensors import trace

SIDES = LinearSides(g0=2e-4, g1=2e-4, tile=16, m0=1e-3, m1=2.5e-4)


def measure(of, **options):
    return measure_utility(of, **{"sides": SIDES, "fetch_s": 2e-3, "draft_s": 0.06} | options)


@pytest.fixture(scope="module")
def found():
    return measure(select_sequences(open_trace("builtin"), range(3)), draft_recall=0.93, name="a few")


def values(found):
    return {figure.figure: figure.value for figure in found["summary"]}


def test_every_policy_and_every_sensor_has_its_figures(found):
    figures = values(found)
    assert len(figures) == len(found["summary"]), "no name twice"
    assert all(value is not None and math.isfinite(value) for value in figures.values())
    for label in CACHES:
        assert f"copies a window, {label}" in figures
    for label in BALANCES:
        assert f"both sides' end, {label}" in figures
        assert f"|T_slow - T_fast|, {label}" in figures
    for label in ("fixed", "adaptive", "last counts", "used or not", "draft counts"):
        assert 0 < figures[f"next window's hot or cold told right, {label}"] <= 1
    assert found["of"] == "a few, slots for 50 %, windows of 9"
    json.dumps([found["samples"], [asdict(figure) for figure in found["summary"]]])


def test_figures_are_those_of_the_samples(found):
    figures, samples = values(found), found["samples"]
    lru = samples["by_policy"]["lru"]
    assert len(lru["copies"]) == samples["windows"] == 3 * 7 - 10
    assert figures["copies a window, lru"] == pytest.approx(np.mean(lru["copies"]))
    ends = np.add(lru["makespan_s"], lru["wait_s"])
    assert ends.min() > 0
    for label in BALANCES:
        raw = samples["by_policy"][label]
        assert figures[f"both sides' end, {label}"] == pytest.approx(
            1e3 * np.mean(np.add(raw["makespan_s"], raw["wait_s"]))
        )
        assert np.mean(raw["makespan_s"]) >= samples["bound_makespan_s"]


def test_goals_are_judged_and_a_hollow_one_can_be_seen(found):
    judged = {figure.figure: figure for figure in found["summary"] if figure.goal is not None}
    assert {name.rpartition(", ")[2] for name in judged} == {"utility", "adaptive", "draft counts"}
    adaptive = judged["next window's hot or cold told right, adaptive"]
    assert adaptive.met == (adaptive.value >= 0.85)
    assert adaptive.bound.startswith("always the commoner class: 0.")


def test_a_draft_that_is_always_right_tells_everything():
    found = measure(select_sequences(open_trace("builtin"), range(2)), draft_recall=1.0)
    sensed = found["samples"]["sensors"]
    assert sensed["right"]["draft counts"]["accuracy"] == 1.0
    bits = sensed["bits_of_next_counts"]
    assert bits["draft counts"] == max(bits.values())
    assert bits["last counts"] >= bits["used or not"], "what is made of counts cannot tell more"


def test_routes_that_never_change_are_told_right_once_known():
    still = trace(lengths=(40,), experts=6, k=2)
    still.expert_ids[:] = still.expert_ids[:, :1]
    found = measure(still, rows=5, draft_recall=None)
    right, moves = found["samples"]["sensors"]["right"], found["samples"]["sensors"]["changes_per_window"]
    assert right["adaptive"]["accuracy"] == right["last counts"]["accuracy"] == 1.0
    assert moves["last counts"] == 0
    assert "draft counts" not in right
    assert values(found)["copies a window, lru"] == 0


def test_too_short_a_trace_is_an_error_in_one_line():
    with pytest.raises(ConfigError, match=r"^trace: '3 windows' \(at least 4 windows of 9 tokens of one sequence\)$"):
        measure(trace(lengths=(9, 9, 17)))
