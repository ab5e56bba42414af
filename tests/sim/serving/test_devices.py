"""Steps on several devices: by hand, and in which direction they move."""

from dataclasses import replace

import pytest

from smoe.core.errors import CapacityError, ConfigError
from smoe.core.topology import DeviceRates, Link, Topology
from smoe.core.topology_file import open_topology
from smoe.sim.serving.devices import Attainable, DeviceCost, Routing
from smoe.sim.serving.load import StepLoad
from smoe.sim.serving.shape import ModelShape, open_shape

DECODE = StepLoad(decode_rows=64, decode_pairs=64 * 900, kv_rows=64 * 900, sequences=64, sampled=64)
PREFILL = StepLoad(prefill_tokens=2048, prefill_pairs=2048 * 1024, kv_rows=2048, sequences=1, sampled=1)
EXACT = Attainable(compute_share=1, memory_share=1, link_share=1, call_s=0, step_s=0)


def two_devices(**rates: float) -> Topology:
    figures = {"flops_per_s": 1e3, "memory_bytes_per_s": 1e12, "memory_bytes": 1e9, **rates}
    links = tuple(Link(a=a, b="s", kind="pcie", bytes_per_s=100.0, latency_s=0.0) for a in "ab")
    return Topology(
        name="two", devices=("a", "b"), hosts=("h", "h"), switches=("s",), links=links, rates=DeviceRates(**figures)
    )


SMALL = ModelShape(
    name="small",
    layers=3,
    dense_layers=1,
    hidden=10,
    vocab=20,
    attention_cut=400,
    attention_whole=30,
    kv_values=8,
    kv_heads=2,
    pair_flops=6,
    num_experts=4,
    top_k=2,
    expert_ffn=5,
    shared_ffn=2,
    dense_ffn=7,
)


def test_a_step_by_hand() -> None:
    """Bound by arithmetic at 1,000 operations a second, and by links of 100 B/s."""
    cost = DeviceCost(two_devices(), SMALL, Routing(schedule="scatter", lar=0.5, dedup=False), attainable=EXACT)
    load = StepLoad(prefill_tokens=6, prefill_pairs=21, kv_rows=6, sampled=1)
    assert cost.parts(load) == pytest.approx(
        {
            "attention": 3 * (2 * 6 * (200 + 30) + 21 * 6 / 2) / 1000,
            "whole": 2 * 2 * 3 * (3 * 10 * 2 + 10 * 4) / 1000 + 2 * 3 * (3 * 10 * 7) / 1000,
            "experts": 2 * 2 * 3 * 2 * 150 / 1000,
            "vocabulary": 2 * 20 * 10 / 2 / 1000 + (6 * 20 / 2) / 100 + (20 * 4 / 2) / 100,
            "reduce": 3 * (6 * 20 / 2) / 100,
            "gather": 3 * (6 * 20 / 2) / 100,
            # 6 rows of 2 choices, half of them remote: 6 rows of 20 bytes and 12 of ids and weights; heads of 16 bytes.
            "dispatch": 2 * (6 * (20 + 12) + 16 * 2) / 2 / 100,
            "combine": 2 * (6 * 20) / 2 / 100,
            "engine": 0.0,
        }
    )


def test_a_step_that_memory_bounds() -> None:
    slow = two_devices(flops_per_s=1e12, memory_bytes_per_s=1e3)
    found = DeviceCost(slow, SMALL, Routing(schedule="scatter", lar=0.5), attainable=EXACT)
    parts = found.parts(StepLoad(decode_rows=1, decode_pairs=50, kv_rows=50, sequences=1, sampled=1))
    assert parts["attention"] == pytest.approx(3 * (2 * 230 + 2 * 50 * 4) / 1000)
    # One row reads 2 of 4 experts, one on each device.
    assert parts["experts"] == pytest.approx(2 * 2 * 150 / 1000)


def test_rows_that_are_sent() -> None:
    assert Routing(schedule="scatter", lar=0.25, dedup=False).sent_rows(4, 8) == 6
    assert Routing(schedule="scatter", lar=0.0).sent_rows(2, 8) == 1, "one other device, once"
    assert Routing(schedule="scatter", lar=1.0).sent_rows(8, 8) == 0
    # By chance each of 3 others is left out by both choices with (3/4)^2.
    assert Routing(schedule="scatter", lar=0.25).sent_rows(4, 2) == pytest.approx(3 * (1 - (3 / 4) ** 2))


@pytest.mark.parametrize("load", [DECODE, PREFILL])
def test_better_hardware_is_never_slower(load: StepLoad) -> None:
    topology, shape = open_topology("8xh100-pcie"), open_shape("deepseek-v2")
    routing = Routing(schedule="allreduce", lar=0.125, imbalance=1.3)

    def seconds(changed: Topology) -> float:
        return DeviceCost(changed, shape, routing).of(load)

    before = seconds(topology)
    assert topology.rates is not None
    for field in ("flops_per_s", "memory_bytes_per_s"):
        better = replace(topology.rates, **{field: 2 * getattr(topology.rates, field)})
        assert seconds(replace(topology, rates=better)) <= before
    faster = tuple(replace(link, bytes_per_s=2 * link.bytes_per_s) for link in topology.links)
    assert seconds(replace(topology, links=faster)) < before


@pytest.mark.parametrize("load", [DECODE, PREFILL])
@pytest.mark.parametrize("topology", ["8xh100-nvlink", "8xh100-pcie"])
def test_schedules_in_their_order(topology: str, load: StepLoad) -> None:
    shape, box = open_shape("deepseek-v2"), open_topology(topology)
    times = [
        DeviceCost(box, shape, Routing(schedule=schedule, lar=lar)).of(load)  # type: ignore[arg-type]
        for schedule, lar in (("allreduce", 0.125), ("scatter", 0.125), ("speculative", 0.4), ("speculative", 0.6))
    ]
    assert times == sorted(times, reverse=True)
    assert len(set(times)) == 4


def test_memory_bounds_kv_rows_and_the_model() -> None:
    shape, box = open_shape("deepseek-v2"), open_topology("8xh100-nvlink")
    assert box.rates is not None
    routing = Routing(schedule="scatter", lar=0.125)
    row = 2 * 60 * 576
    left = 80e9 - 2 * shape.params_of_device(8)
    assert DeviceCost(box, shape, routing).kv_rows == pytest.approx(0.9 * left / row, abs=1)
    small = replace(box, rates=replace(box.rates, memory_bytes=60e9))
    with pytest.raises(CapacityError, match=r"deepseek-v2 on 8xh100-nvlink: 6\d\.\d GB a device, 60\.0 GB of memory"):
        DeviceCost(small, shape, routing)


def test_what_is_refused() -> None:
    with pytest.raises(ConfigError, match="topology: '8gpu-nvswitch'"):
        DeviceCost(open_topology("8gpu-nvswitch"), SMALL, Routing(schedule="scatter", lar=0.125))
    for field, value in (("lar", 1.5), ("imbalance", 0.9), ("schedule", "gossip")):
        with pytest.raises(ConfigError, match=field):
            Routing(**{"schedule": "scatter", "lar": 0.5, field: value})
    with pytest.raises(ConfigError, match="link_share"):
        Attainable(link_share=0)
