"""Rows between devices: counted one by one, and by the formulas."""

import numpy as np
import pytest

from smoe.clustering.traffic import SCHEDULES, computed_at, count_pass, formula_rows, ring_rows, traffic
from tests.clustering.routes import contiguous, drawn


def counted_slowly(expert_ids, held, at):  # type: ignore[no-untyped-def]
    devices = held.shape[1]
    activations, rows = np.zeros((devices, devices), int), np.zeros((devices, devices), int)
    for ids, home in zip(expert_ids, at, strict=True):
        needed = [home if held[e, home] else int(np.flatnonzero(held[e])[0]) for e in ids]
        for device in needed:
            activations[home, device] += 1
        for device in set(needed):
            rows[home, device] += 1
    return activations, rows


@pytest.mark.parametrize("devices", [1, 2, 4])
@pytest.mark.parametrize("replicas", [False, True])
def test_counts_equal_a_count_of_every_activation(devices: int, replicas: bool) -> None:
    trace = drawn(200, layers=1, top_k=3)
    held = contiguous(1, 8, devices)[0]
    if replicas:
        held[[1, 6]] = True
    at = np.random.default_rng(2).integers(0, devices, 200)
    counted = count_pass(trace.expert_ids[0], held, at)
    activations, rows = counted_slowly(trace.expert_ids[0].tolist(), held, at.tolist())
    assert counted.activations.tolist() == activations.tolist()
    assert counted.rows.tolist() == rows.tolist()
    assert counted.activations.sum() == 600
    assert computed_at(trace.expert_ids[0], held, at).sum(axis=1).tolist() == [3] * 200
    assert counted.remote_rows <= counted.remote_activations


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("devices", [2, 4, 8])
def test_formula_is_exactly_what_is_counted_where_chunks_are_equal(schedule: str, devices: int) -> None:
    trace = drawn(256, layers=1)
    held = contiguous(1, 8, devices)[0]
    at = np.random.default_rng(3).permutation(np.arange(256) % devices)
    found = traffic(schedule, trace.expert_ids[0], held, at)
    assert found.counted == pytest.approx(found.formula, rel=1e-12)
    assert found.deduplicated < found.counted or devices == 8  # where an expert a device leaves no duplicates
    u, p = (devices - 1) / devices * 256, 2 * 256 / devices
    rings = 3 if schedule == "allreduce" else 2
    assert found.formula * 256 / devices == pytest.approx(rings * u + 2 * p * (1 - found.lar))


def test_padding_makes_rings_longer_than_the_formula() -> None:
    assert ring_rows(256, 4) == 3 * 256
    assert ring_rows(257, 4) == 3 * 260
    assert formula_rows("scatter", 257, 4, 2, 1.0) == 2 * 3 * 257


def test_one_ring_less_and_less_that_is_remote() -> None:
    trace = drawn(256, layers=1)
    held = contiguous(1, 8, 4)[0]
    at, best = np.arange(256) % 4, np.argsort(held[trace.expert_ids[0]].sum(axis=1), axis=1)[:, -1]
    plain, scattered, shuffled = (
        traffic(name, trace.expert_ids[0], held, where)
        for name, where in (("allreduce", at), ("scatter", at), ("speculative", best))
    )
    assert plain.counted - scattered.counted == pytest.approx(3.0)
    assert shuffled.lar > scattered.lar
    assert scattered.counted - shuffled.counted == pytest.approx(4 * (shuffled.lar - scattered.lar))
