import pytest

from smoe.core.errors import ConfigError
from smoe.core.link_model import LinkModel
from smoe.offload.slots import View
from smoe.sim.link import Link


def view(expert: int) -> View:
    return View(0, expert, expert, 1)


@pytest.mark.parametrize(
    ("text", "rate", "latency"),
    [("2GB/s", 2e9, 0.0), ("2GB/s+0.1ms", 2e9, 1e-4), ("1.5GiB/s + 20us", 1.5 * 2**30, 2e-5), ("800MB/s", 8e8, 0.0)],
)
def test_models_are_read(text: str, rate: float, latency: float) -> None:
    model = LinkModel.parse(text)
    assert model.bytes_per_s == pytest.approx(rate)
    assert model.latency_s == pytest.approx(latency)
    assert model.transfer_s(10**6) == pytest.approx(latency + 1e6 / rate)


@pytest.mark.parametrize(
    "text", ["", "2", "2GB", "0GB/s", "-1GB/s", "nanGB/s", "2GB/s+", "2GB/s+1", "2GB/s+-1ms", "1.2.3GB/s"]
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="link"):
        LinkModel.parse(text)


def test_urgent_before_background_and_what_runs_is_not_interrupted() -> None:
    link = Link(1.0)
    link.begin(view(1), 0.0, deadline=5)
    link.begin(view(2), 0.0, deadline=5)
    link.begin(view(3), 0.5)
    assert link.arrivals(0.9) == []
    assert link.next_arrival_s() == 1.0
    assert link.arrivals(2.0) == [view(1), view(3)]
    assert link.arrivals(10.0) == [view(2)]
    assert (link.busy, link.busy_s) == (False, 3.0)


def test_the_earliest_deadline_starts_first_of_equal_ones_the_first_begun() -> None:
    link = Link(1.0)
    for expert, deadline in ((1, 9), (2, 8), (3, 7), (4, 8), (5, 7)):
        link.begin(view(expert), 0.0, deadline=deadline)
    link.hurry([view(4)])
    assert link.arrivals(9.0) == [view(1), view(4), view(3), view(5), view(2)]


def test_a_background_transfer_can_hurry_or_be_cancelled_until_it_starts() -> None:
    link = Link(1.0)
    for expert in (1, 2, 3, 4):
        link.begin(view(expert), 0.0, deadline=5)
    assert not link.try_cancel(view(1))
    assert link.try_cancel(view(2))
    link.hurry([view(4), view(1)])
    assert link.arrivals(9.0) == [view(1), view(4), view(3)]


def test_an_idle_link_starts_when_asked_not_before() -> None:
    link = Link(1.0)
    link.begin(view(1), 0.0)
    assert link.arrivals(5.0) == [view(1)]
    link.begin(view(2), 7.0)
    assert link.next_arrival_s() == 8.0
