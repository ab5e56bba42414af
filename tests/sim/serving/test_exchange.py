"""Exchanges over a topology, by hand."""

import pytest

from smoe.core.topology import Link, Topology
from smoe.sim.serving.exchange import Exchanges


def boxes(fabric: float = 10.0) -> Topology:
    """Two devices a box, 100 B/s each to its switch, `fabric` B/s between the switches; a second of latency a link."""
    links = [("a", "left"), ("b", "left"), ("c", "right"), ("d", "right"), ("left", "right")]
    return Topology(
        name="boxes",
        devices=("a", "b", "c", "d"),
        hosts=("h",) * 4,
        switches=("left", "right"),
        links=tuple(
            Link(a=a, b=b, kind="pcie", bytes_per_s=fabric if a == "left" else 100.0, latency_s=1.0) for a, b in links
        ),
    )


def test_an_all_to_all_takes_as_long_as_its_busiest_link() -> None:
    found = Exchanges(boxes(), call_s=0.5)
    # Of 30 bytes a device sends 10 to each other: 4 pairs cross the fabric each way, 40 bytes at 10 B/s.
    assert found.spread_s(30) == pytest.approx(0.5 + 3 + 4)
    # With a fast fabric a device's own link is the busiest, which carries all that it sends.
    assert Exchanges(boxes(1000.0)).spread_s(30) == pytest.approx(3 + 0.3)


def test_a_ring_crosses_the_fabric_once_each_way() -> None:
    # b to c and d to a cross, in opposite directions: 30 bytes at 10 B/s, 3 rounds of at most 3 links.
    assert Exchanges(boxes()).ring_s(30) == pytest.approx(3 * 3 + 3)


def test_the_faster_way_is_taken() -> None:
    found = Exchanges(boxes())
    assert found.shared_s(1) == found.spread_s(1) < found.ring_s(1)
    assert found.shared_s(1000) == found.ring_s(1000) < found.spread_s(1000)


def test_a_share_of_the_links_takes_longer() -> None:
    assert Exchanges(boxes(), link_share=0.5).spread_s(30) == pytest.approx(3 + 8)
