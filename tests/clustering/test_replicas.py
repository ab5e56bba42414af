"""Copies of hot experts: who holds what stays true, and load falls."""

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smoe.clustering.replicas import choose_replicas, device_load
from smoe.core.errors import ConfigError
from smoe.core.placement_build import contiguous, with_replicas


def layer(experts: int, devices: int, seed: int = 0, skew: float = 1.2) -> tuple[Any, Any]:
    """Experts in order of their ids, and activations of which a few experts have most."""
    rng = np.random.default_rng(seed)
    held = contiguous(fingerprint="", num_experts=experts, layers=(0,), num_devices=devices).on_device[0]
    popular = rng.permutation((np.arange(experts) + 1.0) ** -skew)
    return held, rng.poisson(popular[:, None] * 1000 * rng.dirichlet(np.ones(devices), experts))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("experts", "devices", "extra"), [(64, 8, 1), (64, 8, 4), (160, 8, 2), (32, 4, 3), (7, 3, 2)])
def test_load_falls_and_more_stays_at_home(experts: int, devices: int, extra: int, seed: int) -> None:
    held, activations = layer(experts, devices, seed)
    found = choose_replicas(held, activations, [extra] * devices)
    assert found.load_before > 1.15
    assert found.load_after <= 1 + 0.75 * (found.load_before - 1)
    assert found.local_after > found.local_before
    loads = device_load(found.on_device, activations)
    assert loads.sum() == activations.sum(), "copies compute nothing twice"
    assert found.load_after == pytest.approx(loads.max() / loads.mean())


def test_every_slot_more_helps_on_average() -> None:
    loads = []
    for extra in (0, 1, 2, 4):
        found = [choose_replicas(*layer(64, 8, seed), [extra] * 8) for seed in range(6)]
        loads.append(np.mean([each.load_after for each in found]))
    assert sorted(loads, reverse=True) == loads
    assert loads[0] > 1.5
    assert loads[-1] < 1.1


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_who_holds_what_stays_true(data: st.DataObject) -> None:
    experts = data.draw(st.integers(1, 9))
    devices = data.draw(st.integers(1, min(4, experts)))
    held = contiguous(fingerprint="", num_experts=experts, layers=(0,), num_devices=devices).on_device[0]
    counts = st.lists(st.integers(0, 50), min_size=experts * devices, max_size=experts * devices)
    activations = np.array(data.draw(counts)).reshape(experts, devices)
    extra = [data.draw(st.integers(0, int((~held[:, g]).sum()))) for g in range(devices)]
    found = choose_replicas(held, activations, extra)
    assert [len(copies) for copies in found.copies] == extra
    assert (found.on_device & held == held).all(), "nobody loses an expert"
    assert (found.on_device.sum(axis=0) - held.sum(axis=0)).tolist() == extra
    for device, copies in enumerate(found.copies):
        assert len(set(copies)) == len(copies)
        assert not held[list(copies), device].any()
        assert found.on_device[list(copies), device].all()
    assert found.local_after >= found.local_before
    if activations.sum() and not any(extra):
        assert found.load_after == found.load_before


def test_balance_comes_first_and_then_locality() -> None:
    """One hot expert on device 0. Its copies are taken before that of a cold expert whose tokens live elsewhere."""
    held = np.eye(3, dtype=bool).repeat(2, axis=0)  # experts 0 1 | 2 3 | 4 5
    activations = np.zeros((6, 3), dtype=int)
    activations[0] = [20, 20, 20]
    activations[1:] = [[0, 0, 4], [0, 2, 0], [3, 0, 0], [2, 0, 0], [0, 0, 2]]
    one = choose_replicas(held, activations, [0, 1, 1])
    assert one.copies == ((), (0,), (0,))
    activations[0] = [58, 2, 0]
    loose = choose_replicas(held, activations, [0, 0, 1], allowed_load=3.0)
    assert loose.copies == ((), (), (1,)), "within the limit, what its own tokens want"


def test_an_expert_with_all_the_load() -> None:
    held, _ = layer(8, 4)
    activations = np.zeros((8, 4), dtype=int)
    activations[5] = 25
    found = choose_replicas(held, activations, [1] * 4)
    assert found.load_before == 4.0
    assert found.load_after == pytest.approx(4 / 4)
    assert [copies.count(5) for copies in map(list, found.copies)] == [1, 1, 0, 1]


def test_a_layer_without_load() -> None:
    held, _ = layer(8, 4)
    found = choose_replicas(held, np.zeros((8, 4)), [2] * 4)
    assert (found.load_before, found.load_after, found.local_after) == (1.0, 1.0, 1.0)
    assert [len(copies) for copies in found.copies] == [2] * 4


def test_copies_fit_a_placement() -> None:
    base = contiguous(fingerprint="f", num_experts=16, layers=(0, 1), num_devices=4)
    found = [choose_replicas(base.on_device[row], layer(16, 4, row)[1], [2] * 4) for row in range(2)]
    made = with_replicas(base, [each.copies for each in found])
    assert made.slots_of_device == (6,) * 4
    assert all(np.array_equal(made.on_device[row], found[row].on_device) for row in range(2))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"activations": np.ones((8, 3))}, "activations: [8, 3] ([8, 4])"),
        ({"activations": np.full((8, 4), np.nan)}, "activations[0, 0]: nan (a count)"),
        ({"activations": -np.ones((8, 4))}, "activations[0, 0]: -1.0 (a count)"),
        ({"extra_slots": [1, 1, 1]}, "extra_slots: [1, 1, 1] (one number for each of 4 devices)"),
        ({"extra_slots": [1, 1, 7, 1]}, "extra_slots[2]: 7 (0 to the 6 experts that it does not hold)"),
        ({"extra_slots": [1, 1, -1, 1]}, "extra_slots[2]: -1"),
        ({"allowed_load": 0.9}, "allowed_load: 0.9 (1 or above"),
        ({"allowed_load": float("nan")}, "allowed_load: nan"),
        ({"on_device": np.zeros((8, 4), dtype=bool)}, "on_device: 'expert 0 nowhere'"),
    ],
)
def test_what_does_not_fit(changes: dict[str, Any], message: str) -> None:
    held, activations = layer(8, 4)
    arguments: dict[str, Any] = {"on_device": held, "activations": activations, "extra_slots": [1] * 4} | changes
    with pytest.raises(ConfigError, match=re.escape(message)):
        choose_replicas(**arguments)
