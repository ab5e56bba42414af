"""What is observed of requests, against the formulas of smoe.metrics.latency on the same times."""

from typing import Any

import pytest

from smoe.core.request import Delta
from smoe.metrics.latency import RequestTimes, e2e_s, itl_s, tpot_s, ttft_s
from smoe.metrics.request_meter import RequestMeter


def delta(request_id: str, tokens: int, **values: Any) -> Delta:
    return Delta(request_id=request_id, text="", token_ids=(1,) * tokens, **values)


def count(histogram: Any) -> int:
    return int(histogram.cumulative()[-1])


def test_a_whole_answer_is_observed_as_a_client_computes_it() -> None:
    meter, times = RequestMeter(), RequestTimes(sent_s=10.0, chunks_s=(10.5, 10.625, 11.5), num_tokens=6)
    meter.begin("a", 7, times.sent_s)
    meter.note(delta("a", 1), 10.5)
    meter.note(delta("a", 3), 10.625)
    meter.note(delta("a", 0), 11.0)  # held back: no token, no gap
    meter.note(delta("a", 2, finish_reason="stop"), 11.5)
    assert meter.ttft_s.total == ttft_s(times)
    assert meter.itl_s.total == pytest.approx(sum(itl_s(times)))
    assert count(meter.itl_s) == len(itl_s(times))
    assert meter.tpot_s.total == tpot_s(times)
    assert meter.e2e_s.total == e2e_s(times)
    assert (meter.prompt_tokens.total, meter.output_tokens.total) == (7, 6)
    assert meter.ended == {"stop": 1, "length": 0, "abort": 0, "numeric_error": 0, "error": 0}
    assert meter.num_open == 0


def test_one_token_has_no_time_per_output_token() -> None:
    meter = RequestMeter()
    meter.begin("a", 1, 0.0)
    meter.note(delta("a", 1, finish_reason="length"), 1.0)
    assert (count(meter.ttft_s), count(meter.e2e_s), count(meter.tpot_s), count(meter.itl_s)) == (1, 1, 0, 0)


def test_failures_are_counted_and_have_no_latency() -> None:
    meter = RequestMeter()
    for name in ("error", "left", "refused"):
        meter.begin(name, 1, 0.0)
    meter.note(delta("error", 0, finish_reason="error", error="store: gone"), 1.0)
    meter.abort("left")
    meter.abort("left")
    meter.note(delta("left", 0, finish_reason="abort"), 1.0)  # the engine says so too, afterwards
    meter.refuse("refused")
    meter.note(delta("unknown", 1, finish_reason="stop"), 1.0)
    assert meter.ended == {"stop": 0, "length": 0, "abort": 1, "numeric_error": 0, "error": 1}
    assert [count(h) for h in (meter.ttft_s, meter.e2e_s, meter.tpot_s, meter.output_tokens)] == [0] * 4
    assert meter.num_open == 0


def test_a_reset_keeps_what_is_open() -> None:
    meter = RequestMeter()
    meter.begin("a", 1, 0.0)
    meter.note(delta("a", 1), 1.0)
    meter.reset()
    meter.note(delta("a", 1, finish_reason="stop"), 3.0)
    assert (count(meter.ttft_s), meter.itl_s.total, meter.e2e_s.total, meter.ended["stop"]) == (0, 2.0, 3.0, 1)
