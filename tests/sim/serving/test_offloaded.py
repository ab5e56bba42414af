"""Steps whose experts are moved: the residency simulator's times, within serving."""

import pytest

from smoe.core.errors import ConfigError
from smoe.core.link_model import LinkModel
from smoe.core.route_trace import RouteTrace
from smoe.sim.compute import ComputeModel
from smoe.sim.serving.cost import ByLoad
from smoe.sim.serving.offloaded import OffloadedCost
from smoe.sim.serving.serve import serve
from smoe.sim.simulate import simulate
from smoe.workload.routes import synthetic_routes
from tests.sim.serving.loads import Linear, arrivals, scheduler

LINK, BYTES = LinkModel(1e9, 1e-4), 1_000_000
COMPUTE = ComputeModel(layer_s=2e-4, row_s=1e-4)


@pytest.fixture(scope="module")
def trace() -> RouteTrace:
    return synthetic_routes(num_layers=3, num_experts=16, top_k=2, tokens=120, sequences=1, prompt=20)


def cost(trace: RouteTrace, capacity: str = "4", policy: str = "evict=lru", **more) -> OffloadedCost:
    return OffloadedCost(trace, policy, capacity, link=LINK, expert_bytes=BYTES, **{"compute": COMPUTE, **more})


def from_row(trace: RouteTrace, made: OffloadedCost, row: int) -> OffloadedCost:
    made._start_of["0"] = row
    return made


@pytest.mark.parametrize("capacity", ["1", "4", "16"])
def test_a_request_alone_takes_what_the_simulator_says(trace: RouteTrace, capacity: str) -> None:
    """Its prompt whole, then row by row: the whole trace, as `simulate` replays it."""
    made = from_row(trace, cost(trace, capacity), 0)
    [record] = serve(arrivals((0.0, 20, 101)), scheduler(), made).records
    whole = simulate(trace, "evict=lru", capacity, link=LINK, compute=COMPUTE, expert_bytes=BYTES, pause_share=0.6)
    assert record.chunk_s[-1] == pytest.approx(whole.seconds)
    counts = made.stats()
    assert (counts.hits, counts.misses) == (whole.experts.hits, whole.experts.misses)


def test_rows_go_on_at_the_beginning_of_the_trace(trace: RouteTrace) -> None:
    a, b = (from_row(trace, cost(trace, "16"), row) for row in (110, 0))
    serve(arrivals((0.0, 30, 1)), scheduler(), a)
    serve(arrivals((0.0, 30, 1)), scheduler(), b)
    ids = trace.expert_ids
    for made, rows in ((a, [*range(110, 120), *range(20)]), (b, range(30))):
        distinct = sum(len(set(ids[layer, list(rows)].ravel().tolist())) for layer in range(3))
        assert made.stats().misses == distinct


def test_more_memory_is_not_slower(trace: RouteTrace) -> None:
    each = arrivals(*[(0.05 * n, 8, 12) for n in range(6)])
    ends = [serve(each, scheduler(), cost(trace, capacity)).ended_s for capacity in ("2", "4", "8", "16")]
    assert ends == sorted(ends, reverse=True)
    assert ends[-1] < 0.8 * ends[0]


def test_idle_time_lets_transfers_end_and_does_not_count(trace: RouteTrace) -> None:
    made = from_row(trace, cost(trace, "16"), 0)
    made._start_of["1"] = 0
    first, second = serve(arrivals((0.0, 5, 1), (100.0, 5, 1)), scheduler(), made).records
    took = 3 * COMPUTE.layer_s + COMPUTE.row_s * 5 * 2 * 3
    assert second.chunk_s[0] - 100 == pytest.approx(took), "the same rows: every expert is there"
    assert first.chunk_s[0] > took


def test_a_cost_of_all_else_is_added_whole(trace: RouteTrace) -> None:
    bare = ComputeModel(0.0, COMPUTE.row_s)
    alone = serve(arrivals((0.0, 5, 3)), scheduler(), cost(trace, compute=bare)).records[0]
    dense = serve(arrivals((0.0, 5, 3)), scheduler(), cost(trace, compute=bare, dense=Linear(step_s=0.3))).records[0]
    assert dense.chunk_s == pytest.approx([at + 0.3 * (n + 1) for n, at in enumerate(alone.chunk_s)])


def test_what_is_refused(trace: RouteTrace) -> None:
    with pytest.raises(ConfigError, match="belady"):
        cost(trace, policy="evict=belady")
    with pytest.raises(ConfigError, match=r"draft_tokens: 3"):
        serve(arrivals((0.0, 5, 9)), scheduler(drafts=3), cost(trace))
    with pytest.raises(ConfigError, match="0 a layer beside a cost of all else"):
        cost(trace, dense=Linear())
    assert ByLoad(Linear()).seconds  # the same protocol
