"""Rates within an SLO, where they are known."""

import pytest

from smoe.core.errors import ConfigError
from smoe.metrics.slo import Slo
from smoe.sim.serving.cost import ByLoad
from smoe.sim.serving.curve import Engine, Load, figures, highest, serve_at
from smoe.workload.arrivals import ArrivalProcess
from smoe.workload.demand import Demand
from tests.sim.serving.loads import Linear

SLO = Slo.parse(["ttft:150"])
EVEN = Load(Demand(num_requests=200, input_len=10, output_len=1, process=ArrivalProcess("constant")))


def engine(step_s: float = 0.1, seqs: int = 1, **more: float) -> Engine:
    return Engine(
        make_cost=lambda: ByLoad(Linear(step_s=step_s, **more)),
        kv_rows=1000,
        max_num_seqs=seqs,
        max_num_batched_tokens=100,
    )


def test_one_at_a_time_serves_one_over_its_time() -> None:
    """Steps of 0.1 s with a request each: 10 a second, and a little more while the queue may grow."""
    search, tried = highest(engine(), EVEN, SLO, share=1.0, tolerance=0.001)
    assert search.bounded
    assert 10 <= search.rate <= 10 * 1.005
    assert [point["request_rate"] for point in tried] == sorted(point["request_rate"] for point in tried)
    assert all(point["simulated"] for point in tried)


@pytest.mark.parametrize("changes", [{"step_s": 0.05}, {"seqs": 4}])
def test_better_engines_serve_more(changes: dict) -> None:
    load = Load(Demand(num_requests=150, input_len=10, output_len=4))
    before = highest(engine(prefill_s=0.001), load, SLO, share=0.99)[0].rate
    after = highest(engine(prefill_s=0.001, **changes), load, SLO, share=0.99)[0].rate
    assert after > before > 0


def test_figures_are_those_of_measured_runs() -> None:
    served = serve_at(engine(), EVEN, 5.0)
    found = figures(served, SLO, 5.0)
    assert found["simulated"] is True
    assert found["slo_attainment"] == 1.0
    assert found["mean_ttft_ms"] == pytest.approx(100)
    assert found["completed"] == 200
    assert found["request_throughput"] == pytest.approx(200 / (199 / 5 + 0.1))
    assert found["busy_share"] == pytest.approx(0.1 * 200 / (199 / 5 + 0.1))
    assert serve_at(engine(), EVEN, 5.0) == served, "the same each time"


def test_overload_shows_in_the_queue() -> None:
    found = figures(serve_at(engine(), EVEN, 20.0), SLO, 20.0)
    assert found["slo_attainment"] < 0.1
    assert found["most_waiting"] > 90


def test_requests_come_for_as_long_as_asked() -> None:
    load = Load(Demand(num_requests=50), min_s=10.0)
    assert [load.at(rate).num_requests for rate in (None, 2.0, 5.0, 7.05)] == [50, 50, 50, 71]
    traced = Load(Demand(num_requests=50, trace="azure-conv"), min_s=10.0)
    rows = traced.demand.open().rows
    assert traced.at(1000.0).num_requests == min(10_000, len(rows))


def test_what_is_refused() -> None:
    for field, value in (("kv_rows", 0), ("max_num_seqs", 0), ("accept", 1.5)):
        with pytest.raises(ConfigError):
            Engine(**{"make_cost": lambda: ByLoad(Linear()), "kv_rows": 10, field: value})
