import numpy as np
import pytest

from smoe.metrics.slo import Slo, summarise
from tests.metrics.records import record

RECORDS = [
    record(10.5, 10.6, 10.9, due_s=9.9),
    record(11.0, 11.2, 11.4, 11.6),
    record(10.2),
    record(10.2, 10.3, error="cut off"),
    record(),
]


def test_figures_are_of_completed_requests_and_failures_are_counted_apart() -> None:
    figures = summarise(RECORDS, 2.0, Slo.parse(["ttft:600"]))
    assert (figures["completed"], figures["failed"]) == (3, 2)
    assert (figures["total_input_tokens"], figures["total_output_tokens"]) == (21, 8)
    assert figures["request_throughput"] == 1.5
    assert figures["output_throughput"] == 4.0
    assert figures["total_token_throughput"] == 14.5
    assert figures["mean_ttft_ms"] == pytest.approx((500 + 1000 + 200) / 3)
    assert figures["median_ttft_ms"] == figures["p50_ttft_ms"] == pytest.approx(500)
    assert figures["p99_ttft_ms"] == pytest.approx(np.percentile([500, 1000, 200], 99))
    assert figures["std_ttft_ms"] == pytest.approx(np.std([500, 1000, 200]))
    assert figures["max_e2el_ms"] == pytest.approx(1600)


def test_one_token_answers_have_no_time_per_token_and_gaps_are_pooled() -> None:
    figures = summarise(RECORDS, 2.0, Slo())
    assert figures["mean_tpot_ms"] == pytest.approx((200 + 200) / 2)
    assert figures["mean_itl_ms"] == pytest.approx(np.mean([100, 300, 200, 200, 200]))


def test_goodput_and_attainment_count_failures_against() -> None:
    figures = summarise(RECORDS, 2.0, Slo.parse(["ttft:600"]))
    assert figures["request_goodput"] == 1.0
    assert figures["slo_attainment"] == pytest.approx(2 / 5)
    assert figures["slo"] == "ttft:600"


def test_the_clients_own_delay_is_told() -> None:
    figures = summarise(RECORDS, 2.0, Slo())
    assert figures["max_late_ms"] == pytest.approx(100)
    assert figures["mean_late_ms"] == pytest.approx(20)


def test_nothing_answered_has_no_latency_rather_than_zero() -> None:
    figures = summarise([record(error="refused")], 1.0, Slo())
    assert (figures["completed"], figures["failed"], figures["slo_attainment"]) == (0, 1, 0.0)
    assert figures["mean_ttft_ms"] is None
    assert figures["p99_tpot_ms"] is None
