import pytest

from smoe.core.errors import ConfigError
from smoe.metrics.search import highest_rate


def falling(limit: float):
    """All meet it up to `limit`, fewer and fewer beyond."""
    return lambda rate: 1.0 if rate <= limit else limit / rate


@pytest.mark.parametrize("start", [0.01, 0.9, 1.0, 7.3, 50.0, 900.0])
@pytest.mark.parametrize("limit", [0.05, 1.0, 3.3, 64.0, 700.0])
def test_ends_just_below_the_limit_from_anywhere(start: float, limit: float) -> None:
    found = highest_rate(falling(limit), share=1.0, start=start, lowest=0.01, highest=1000, tolerance=0.05)
    assert found.rate is not None
    assert found.above is not None
    assert found.rate <= limit < found.above <= 1.05 * found.rate
    assert len({trial.rate for trial in found.trials}) == len(found.trials) < 30


def test_a_share_below_all_allows_a_higher_rate() -> None:
    found = highest_rate(falling(8.0), share=0.8, start=1, lowest=0.1, highest=100, tolerance=0.01)
    assert found.rate == pytest.approx(10.0, rel=0.01)


def test_no_rate_is_low_enough() -> None:
    found = highest_rate(lambda _: 0.5, share=0.99, start=1, lowest=0.2, highest=100)
    assert found.rate is None
    assert [trial.rate for trial in found.trials] == [1, 0.5, 0.25, 0.2]
    assert found.above == 0.2


def test_no_rate_is_too_high() -> None:
    found = highest_rate(lambda _: 1.0, share=0.99, start=1, lowest=0.2, highest=5)
    assert (found.rate, found.above) == (5, None)


@pytest.mark.parametrize(
    "wrong", [{"start": 0.01}, {"start": 200}, {"share": 0.0}, {"share": 1.1}, {"tolerance": 0}, {"lowest": 0.0}]
)
def test_limits_are_checked(wrong: dict[str, float]) -> None:
    options = {"share": 0.9, "start": 1.0, "lowest": 0.1, "highest": 100.0, **wrong}
    with pytest.raises(ConfigError):
        highest_rate(lambda _: 1.0, **options)
