import numpy as np
import pytest

from smoe.metrics.latency import RequestTimes, e2e_s, itl_s, percentile, tpot_s, ttft_s

TIMES = RequestTimes(sent_s=10.0, chunks_s=(10.5, 10.6, 10.9), num_tokens=5)


def test_definitions() -> None:
    assert ttft_s(TIMES) == pytest.approx(0.5)
    assert e2e_s(TIMES) == pytest.approx(0.9)
    assert itl_s(TIMES) == pytest.approx([0.1, 0.3])
    assert tpot_s(TIMES) == pytest.approx(0.4 / 4)  # tokens, not chunks


def test_answers_too_short_for_a_figure() -> None:
    nothing = RequestTimes(sent_s=1.0, chunks_s=(), num_tokens=0)
    assert (ttft_s(nothing), e2e_s(nothing), tpot_s(nothing), itl_s(nothing)) == (None, None, None, [])
    one = RequestTimes(sent_s=1.0, chunks_s=(2.0,), num_tokens=1)
    assert (ttft_s(one), tpot_s(one), itl_s(one)) == (1.0, None, [])


@pytest.mark.parametrize("percent", [0, 10, 50, 90, 99, 100])
def test_percentile_is_numpys(percent: float) -> None:
    for values in ([3.0], [1.0, 2.0], [5.0, 1.0, 4.0, 2.0, 8.0]):
        assert percentile(values, percent) == pytest.approx(np.percentile(values, percent))
