"""Buckets against counting by hand; quantiles against what PromQL's histogram_quantile gives."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smoe.metrics.histogram import Histogram, quantile, steps_1_2_5

BOUNDS = (1.0, 2.0, 5.0)


@given(st.lists(st.one_of(st.sampled_from([0.0, 1.0, 2.0, 5.0]), st.floats(0, 10))))
def test_each_value_is_in_every_bucket_that_reaches_it(values: list[float]) -> None:
    histogram = Histogram(BOUNDS)
    for value in values:
        histogram.observe(value)
    expected = [sum(value <= bound for value in values) for bound in (*BOUNDS, float("inf"))]
    assert histogram.cumulative() == expected
    assert histogram.total == pytest.approx(sum(values))
    histogram.reset()
    assert (histogram.cumulative(), histogram.total) == ([0] * 4, 0.0)


@pytest.mark.parametrize(
    ("cumulative", "share", "expected"),
    [
        ([0, 0, 0, 0], 0.5, None),
        ([4, 4, 4, 4], 0.5, 0.5),  # from 0 in the first bucket
        ([0, 10, 10, 10], 0.5, 1.5),
        ([0, 10, 10, 10], 1.0, 2.0),
        ([2, 2, 4, 4], 0.75, 3.5),
        ([0, 0, 0, 3], 0.9, 5.0),  # past the last bound
        ([1, 1, 1, 10], 0.9, 5.0),
    ],
)
def test_quantiles(cumulative: list[int], share: float, expected: float | None) -> None:
    assert quantile(BOUNDS, cumulative, share) == expected


def test_steps_reach_what_they_have_to() -> None:
    assert steps_1_2_5(20) == (1, 2, 5, 10, 20)
    assert steps_1_2_5(21) == (1, 2, 5, 10, 20, 50)
    assert steps_1_2_5(1) == (1,)
