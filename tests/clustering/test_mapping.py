"""Clusters on devices: never worse, exact where every assignment is tried, and bytes told apart by link."""

import itertools
import re
from typing import Any

import numpy as np
import pytest

from smoe.clustering.link_bytes import link_bytes
from smoe.clustering.mapping import link_seconds, map_clusters, on_devices
from smoe.core.errors import ConfigError
from smoe.core.topology_file import open_topology


def ring(rng: np.random.Generator, devices: int) -> Any:
    """Costs of a ring whose links differ."""
    lengths = rng.uniform(1, 3, devices)
    ends = np.concatenate([[0], np.cumsum(lengths)])
    away = np.abs(ends[:devices, None] - ends[None, :devices])
    return np.minimum(away, ends[-1] - away)


def even(devices: int) -> tuple[int, ...]:
    return (4,) * devices


def brute_force(traffic: Any, cost: Any, flows: Any, slots: tuple[int, ...]) -> float:
    layers, devices = traffic.shape[:2]
    one = [p for p in itertools.permutations(range(devices)) if all(slots[d] == slots[c] for c, d in enumerate(p))]
    return min(link_seconds(np.array(m), traffic, cost, flows) for m in itertools.product(one, repeat=layers))


@pytest.mark.parametrize("slots", [even(4), (3, 3, 2, 2)], ids=["even", "uneven"])
@pytest.mark.parametrize("seed", range(5))
def test_one_layer_is_exact(seed: int, slots: tuple[int, ...]) -> None:
    rng = np.random.default_rng(seed)
    traffic, cost = rng.exponential(size=(1, 4, 4)), ring(rng, 4)
    found = map_clusters(traffic, cost, slots_of_device=slots)
    assert found.exact
    assert found.seconds_after == pytest.approx(brute_force(traffic, cost, None, slots), rel=1e-12)
    at = found.device_of_cluster[0]
    assert found.device_of_cluster.dtype == np.int16
    assert sorted(at.tolist()) == [0, 1, 2, 3]
    assert [slots[device] for device in at] == list(slots)


def test_flows_between_layers_are_followed() -> None:
    """Layers that talk only to each other end up one behind the other: at no cost at all."""
    rng = np.random.default_rng(0)
    steps = [rng.permutation(4) for _ in range(3)]
    flows = np.zeros((3, 4, 4))
    for layer, step in enumerate(steps):
        flows[layer, np.arange(4), step] = 5.0
    found = map_clusters(np.zeros((4, 4, 4)), ring(rng, 4), slots_of_device=even(4), flows=flows)
    assert found.seconds_before > 0
    assert found.seconds_after == 0
    for layer, step in enumerate(steps):
        here, there = found.device_of_cluster[layer : layer + 2]
        assert np.array_equal(there[step], here)


@pytest.mark.parametrize("seed", range(5))
def test_flows_and_traffic_together(seed: int) -> None:
    rng = np.random.default_rng(seed)
    traffic, flows, cost = rng.exponential(size=(2, 3, 3)), 3 * rng.exponential(size=(1, 3, 3)), ring(rng, 3)
    found = map_clusters(traffic, cost, slots_of_device=even(3), flows=flows)
    best = brute_force(traffic, cost, flows, even(3))
    assert best <= found.seconds_after <= found.seconds_before
    assert found.seconds_after <= 1.05 * best, "layer by layer is not all layers at once, but near it"
    assert found.seconds_after == pytest.approx(link_seconds(found.device_of_cluster, traffic, cost, flows))


@pytest.mark.parametrize("layers", [1, 2])
def test_swaps_find_hidden_halves(layers: int) -> None:
    """Sixteen clusters in two sets that talk within, dealt at random: the two nodes take one set each."""
    topology = open_topology("2nodes-x8")
    rng = np.random.default_rng(0)
    traffic = np.empty((layers, 16, 16))
    for layer in range(layers):
        side = rng.permutation(16) % 2
        traffic[layer] = np.where(side[:, None] == side[None, :], 100.0, 1.0)
    found = map_clusters(traffic, topology.cost(), slots_of_device=even(16), seed=3)
    assert not found.exact
    for layer in range(layers):
        before, after = (
            link_bytes(topology, t[layer]) for t in (traffic, on_devices(found.device_of_cluster, traffic))
        )
        assert after.by_class["other_host"] == 2 * 64
        assert before.by_class["other_host"] > 1000
        assert sum(after.by_class.values()) == sum(before.by_class.values())


def test_swaps_agree_with_every_assignment_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(7)
    traffic, cost = rng.exponential(size=(1, 7, 7)), ring(rng, 7)
    slots = (3, 3, 3, 3, 2, 2, 2)
    exact = map_clusters(traffic, cost, slots_of_device=slots)
    monkeypatch.setattr("smoe.clustering.mapping.EXACT_DEVICES", 2)
    swapped = map_clusters(traffic, cost, slots_of_device=slots)
    assert swapped.seconds_after == pytest.approx(exact.seconds_after)
    assert [slots[d] for d in swapped.device_of_cluster[0]] == list(slots)


@pytest.mark.parametrize("devices", [5, 12])
def test_seeds_decide_and_nothing_else(devices: int) -> None:
    rng = np.random.default_rng(1)
    traffic, cost = rng.exponential(size=(2, devices, devices)), ring(rng, devices)
    found = [map_clusters(traffic, cost, slots_of_device=even(devices), seed=5) for _ in range(2)]
    assert found[0].device_of_cluster.tobytes() == found[1].device_of_cluster.tobytes()
    assert found[0].seconds_after <= found[0].seconds_before


def test_nothing_moves_for_nothing() -> None:
    """Where all devices are alike, or there is no traffic, clusters stay where they are."""
    flat = open_topology("8gpu-nvswitch").cost()
    rng = np.random.default_rng(0)
    for traffic in (rng.exponential(size=(2, 8, 8)), np.zeros((2, 8, 8))):
        found = map_clusters(traffic, flat, slots_of_device=even(8))
        assert np.array_equal(found.device_of_cluster, np.tile(np.arange(8), (2, 1)))


def test_bytes_by_link() -> None:
    topology = open_topology("2x4-pcie-upi")
    traffic = np.zeros((8, 8))
    traffic[0, 0], traffic[0, 1], traffic[1, 4], traffic[5, 2] = 1e9, 63e9, 20e9, 40e9
    found = link_bytes(topology, traffic)
    assert found.by_class == {"same_device": 1e9, "same_host": 123e9, "other_host": 0.0}
    assert found.by_kind == {"pcie": 2 * 123e9, "upi": 60e9}
    assert (found.busiest, found.busiest_s) == ("socket1 -> socket0", 2.0)
    assert found.link_s == pytest.approx(2 * 123 / 63 + 3.0)
    assert found.link_s == pytest.approx(float((traffic * topology.cost()).sum()))


def test_bytes_of_one_device() -> None:
    topology = open_topology("8gpu-nvswitch")
    none = link_bytes(topology, np.zeros((8, 8)))
    assert (none.busiest_s, none.link_s) == (0.0, 0.0)
    with pytest.raises(ConfigError, match=r"topology: '8gpu-nvswitch of 8 devices' \(4 devices\)"):
        link_bytes(topology, np.zeros((4, 4)))


@pytest.mark.parametrize(
    ("traffic", "flows", "slots", "message"),
    [
        (np.ones((2, 3, 3)), None, even(4), "topology: '3 devices' (the 4 devices of the placement)"),
        (np.ones((2, 4, 3)), None, even(3), "traffic: [2, 4, 3] (layers of [3, 3])"),
        (np.ones((3, 3)), None, even(3), "traffic: [3, 3]"),
        (np.ones((2, 3, 3)), np.ones((2, 3, 3)), even(3), "flows: [2, 3, 3] (1 steps of [3, 3])"),
        (np.full((2, 3, 3), np.nan), None, even(3), "traffic: nan (bytes, 0 or above)"),
        (np.ones((2, 3, 3)), -np.ones((1, 3, 3)), even(3), "flows: -1.0 (bytes, 0 or above)"),
    ],
)
def test_sizes_that_do_not_fit(traffic: Any, flows: Any, slots: tuple[int, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        map_clusters(traffic, np.ones((3, 3)), slots_of_device=slots, flows=flows)
