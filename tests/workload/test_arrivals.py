import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smoe.core.errors import ConfigError
from smoe.workload.arrivals import ArrivalProcess

KINDS = ["poisson", "gamma:0.5", "gamma:3", "constant"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rate", [0.25, 40.0])
def test_rate_and_spread_of_the_gaps_are_as_asked(kind: str, rate: float) -> None:
    process = ArrivalProcess.parse(kind)
    gaps = np.diff(process.times_s(40_001, rate, seed=3))
    cv = 0.0 if kind == "constant" else process.cv
    assert gaps.mean() == pytest.approx(1 / rate, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05, abs=1e-6)


@given(
    kind=st.sampled_from(KINDS),
    rate=st.floats(1e-3, 1e4),
    count=st.integers(1, 200),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=60, deadline=None)
def test_equal_seeds_give_equal_patterns_at_every_rate(kind: str, rate: float, count: int, seed: int) -> None:
    process = ArrivalProcess.parse(kind)
    times = process.times_s(count, rate, seed)
    assert times == process.times_s(count, rate, seed)
    assert len(times) == count
    assert times[0] == 0
    assert times == sorted(times)
    assert np.array(times) * rate == pytest.approx(process.times_s(count, 1.0, seed))


def test_other_seeds_give_other_times() -> None:
    process = ArrivalProcess.parse("poisson")
    assert process.times_s(50, 1.0, seed=0) != process.times_s(50, 1.0, seed=1)


def test_a_trace_keeps_its_times_or_is_stretched_to_a_rate() -> None:
    process = ArrivalProcess.parse("trace")
    own = [5.0, 5.0, 6.0, 9.0, 100.0]
    assert process.times_s(4, None, 0, own) == [0, 0, 1, 4]
    assert process.times_s(4, 3.0, 0, own) == pytest.approx([0, 0, 0.25, 1])  # 3 gaps in one second


@pytest.mark.parametrize(
    "wrong", ["", "uniform", "gamma", "gamma:", "gamma:0", "gamma:-1", "gamma:nan", "gamma:x", "poisson:1", "trace:2"]
)
def test_a_bad_process_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigError, match="arrival: "):
        ArrivalProcess.parse(wrong)


def test_a_process_needs_its_rate_and_a_trace_its_rows() -> None:
    with pytest.raises(ConfigError, match="only a trace has its own"):
        ArrivalProcess.parse("poisson").times_s(3, None, 0)
    with pytest.raises(ConfigError, match="rate: 0"):
        ArrivalProcess.parse("poisson").times_s(3, 0.0, 0)
    with pytest.raises(ConfigError, match="with 3 rows; there are 2"):
        ArrivalProcess.parse("trace").times_s(3, None, 0, [0.0, 1.0])
    with pytest.raises(ConfigError, match="different times"):
        ArrivalProcess.parse("trace").times_s(2, 1.0, 0, [4.0, 4.0])


def test_names_are_what_is_parsed() -> None:
    for kind in [*KINDS, "trace"]:
        assert str(ArrivalProcess.parse(kind)) == kind
