"""Fronts of local share against imbalance."""

import pytest

from smoe.clustering.front import above, front, share_at

POINTS = [(1.5, 0.6), (1.0, 0.4), (2.0, 0.7), (1.7, 0.55), (1.5, 0.5)]


def test_front_drops_what_is_beaten() -> None:
    assert front(POINTS) == [(1.0, 0.4), (1.5, 0.6), (2.0, 0.7)]


@pytest.mark.parametrize(("at", "share"), [(0.9, None), (1.0, 0.4), (1.25, 0.5), (1.5, 0.6), (1.9, 0.68), (9.0, 0.7)])
def test_share_at_an_imbalance(at: float, share: float | None) -> None:
    assert share_at(POINTS, at) == (None if share is None else pytest.approx(share))


def test_lead() -> None:
    assert above(POINTS, [(1.25, 0.45), (2.0, 0.4)]) == pytest.approx(0.05)
    assert above(POINTS, [(1.25, 0.55)]) == pytest.approx(-0.05)
    assert above(POINTS, [(0.5, 0.2)]) is None
