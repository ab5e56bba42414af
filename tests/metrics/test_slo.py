import pytest

from smoe.core.errors import ConfigError
from smoe.metrics.slo import Slo, latency_ms
from tests.metrics.records import record

ANSWER = record(10.5, 10.6, 10.9, 11.0)  # ttft 500, gaps 100 300 100, tpot 166.7, e2el 1000 ms


def test_each_limit_decides_alone() -> None:
    for name, value in (("ttft", 500.0), ("tpot", 500 / 3), ("e2el", 1000.0), ("tbt_p50", 100.0), ("tbt_p90", 260.0)):
        assert latency_ms(name, ANSWER) == pytest.approx(value)
        assert Slo.parse([f"{name}:{value + 0.01}"]).meets(ANSWER)
        assert not Slo.parse([f"{name}:{value - 0.01}"]).meets(ANSWER)


def test_all_limits_together() -> None:
    assert Slo.parse(["ttft:501", "tpot:200", "tbt_p90:261", "e2el:1001"]).meets(ANSWER)
    assert not Slo.parse(["ttft:501", "tpot:200", "tbt_p90:259", "e2el:1001"]).meets(ANSWER)
    assert str(Slo.parse(["ttft:500", "tpot:50.5"])) == "ttft:500 tpot:50.5"


def test_a_failed_request_never_meets() -> None:
    assert not Slo().meets(record(10.5, 10.6, error="connection reset"))
    assert not Slo().meets(record())  # an answer without tokens
    assert Slo().meets(record(10.5))


def test_what_a_short_answer_does_not_have_exceeds_nothing() -> None:
    one = record(10.1)
    assert latency_ms("tpot", one) is None
    assert latency_ms("tbt_p90", one) is None
    assert Slo.parse(["tpot:1", "tbt_p90:1", "ttft:101"]).meets(one)
    assert not Slo.parse(["ttft:99"]).meets(one)


def test_tokens_not_chunks_count_for_time_per_token() -> None:
    assert latency_ms("tpot", record(10.5, 11.5, tokens=11)) == pytest.approx(100)


@pytest.mark.parametrize(
    "wrong", ["ttft", "ttft:", "ttft:soon", "ttft:0", "ttft:-1", "ttft:inf", "tbt_p101:5", "p90:5"]
)
def test_a_bad_limit_is_one_line(wrong: str) -> None:
    with pytest.raises(ConfigError, match="goodput: ") as caught:
        Slo.parse([wrong])
    assert "\n" not in str(caught.value)
    assert wrong in str(caught.value)


def test_a_limit_given_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="ttft once"):
        Slo.parse(["ttft:1", "tpot:3", "ttft:2"])
