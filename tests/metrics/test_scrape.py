"""Two pages of /metrics, and what is between them."""

from dataclasses import replace

import pytest

from smoe.core.request import Delta
from smoe.core.stats import ExpertStats
from smoe.metrics.request_meter import RequestMeter
from smoe.metrics.scrape import Change, Scrape
from tests.metrics.pages import STATS, page


def answered(*ttfts_s: float) -> RequestMeter:
    meter = RequestMeter()
    for i, ttft_s in enumerate(ttfts_s):
        meter.begin(str(i), 1, 0.0)
        meter.note(Delta(request_id=str(i), text="", token_ids=(1,), finish_reason="stop"), ttft_s)
    return meter


def test_rates_and_quantiles_are_of_the_interval_alone() -> None:
    more = replace(STATS, generated_tokens=90, experts=ExpertStats(hits=100, cold_misses=25, disk_bytes=64_000_000))
    before = Scrape.parse(page(requests=answered(3.0, 3.0)), 2000.0)
    now = Scrape.parse(page(requests=answered(3.0, 3.0, 0.003, 0.003), engine=more), 2010.0)
    change = Change(before, now)
    assert change.rate("generation_tokens_total") == 4.0
    assert change.count("expert_uses_total", outcome="hit") == 40
    assert change.count("expert_uses_total") == 25  # late and collisions have gone back: nothing checks that here
    assert change.rate("link_bytes_total", link="disk") == 0.0
    assert change.quantile("time_to_first_token_seconds", 0.5) == pytest.approx(0.0035)  # of 0.002 to 0.005
    assert change.quantile("time_per_output_token_seconds", 0.5) is None
    assert change.quantile("unknown", 0.5) is None
    assert change.rate("unknown_total") is None
    assert change.ratio("spec_decode_num_accepted_tokens_total", "spec_decode_num_draft_tokens_total") is None


def test_all_that_was_counted_is_a_change_from_the_beginning() -> None:
    now = Scrape.parse(page(), 1010.0)
    change = Change(now.beginning(), now)
    assert change.seconds == 10.0
    assert change.rate("generation_tokens_total") == 5.0
    assert change.ratio("local_choices_total", "routed_choices_total") == 0.75
    assert now.beginning().value("num_requests_waiting") == 3  # a level


def test_a_reset_or_restart_is_seen() -> None:
    first, second = Scrape.parse(page(), 1.0), Scrape.parse(page(since_s=1001.0), 2.0)
    assert not second.counts_on_from(first)
    assert second.counts_on_from(Scrape.parse(page(since_s=1001.0), 1.5))


def test_replicas_are_added_up() -> None:
    both = page(replica="a") + page(replica="b")
    found = Scrape.parse(both, 1.0)
    assert found.value("generation_tokens_total") == 100
    assert found.value("generation_tokens_total", replica="b") == 50
    assert found.labelled("device_choices_total", "device") == {"0": 24, "1": 8}


@pytest.mark.parametrize("text", ["", "<html>", "process_open_fds 3\n"])
def test_other_pages_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        Scrape.parse(text, 1.0)
