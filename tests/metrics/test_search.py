"""Bisection against systems whose limit is known."""

import pytest

from smoe.metrics.search import highest_rate


@pytest.mark.parametrize("limit", [0.013, 0.5, 1.0, 3.3, 977.0])
@pytest.mark.parametrize("tolerance", [0.5, 0.05, 0.01])
def test_is_within_the_tolerance_below_the_limit(limit: float, tolerance: float) -> None:
    search = highest_rate(lambda rate: rate <= limit, start=1.0, tolerance=tolerance)
    assert search.rate <= limit < search.rate * (1 + tolerance) * 1.000001
    assert search.bounded


def test_every_rate_is_tried_once_and_kept() -> None:
    asked: list[float] = []

    def holds(rate: float) -> bool:
        asked.append(rate)
        return rate <= 5

    search = highest_rate(holds, start=1.0, tolerance=0.2)
    assert asked == [rate for rate, _ in search.trials]
    assert len(set(asked)) == len(asked)
    assert asked[:4] == [1, 2, 4, 8]
    assert all(held == (rate <= 5) for rate, held in search.trials)


def test_smaller_steps_from_a_good_guess() -> None:
    search = highest_rate(lambda rate: rate <= 5, start=4.5, factor=1.2, tolerance=0.1)
    assert [rate for rate, _ in search.trials] == pytest.approx([4.5, 5.4, (4.5 * 5.4) ** 0.5])
    assert search.rate == pytest.approx((4.5 * 5.4) ** 0.5)
    below = highest_rate(lambda rate: rate <= 4, start=4.5, factor=1.2, tolerance=0.5)
    assert below.trials == ((4.5, False), (3.75, True))


def test_ends_at_its_bounds() -> None:
    above = highest_rate(lambda _: True, start=1.0, highest=6.0)
    assert above.rate == 6
    assert not above.bounded
    below = highest_rate(lambda _: False, start=1.0, lowest=0.3)
    assert below.rate == 0
    assert [rate for rate, _ in below.trials] == [1, 0.5, 0.3]
