import numpy as np
import pytest

from smoe.core.errors import ConfigError
from smoe.core.route_summary import summarize
from smoe.sim.result import SimResult
from smoe.sim.simulate import simulate
from smoe.workload.routes import synthetic_routes

SIZES = {"num_layers": 4, "num_experts": 21, "top_k": 5, "tokens": 400}


def test_equal_seeds_equal_traces() -> None:
    one, two, other = (synthetic_routes(**SIZES, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(one.expert_ids, two.expert_ids)
    assert not np.array_equal(one.expert_ids, other.expert_ids)


def test_popularity_and_locality_are_as_asked() -> None:
    def means(**changes: float) -> tuple[float, float]:
        layers = summarize(synthetic_routes(**SIZES, **changes))["layers"]
        return tuple(float(np.mean([layer[key] for layer in layers])) for key in ("load_max_over_mean", "repeat_share"))  # type: ignore[return-value]

    flat, skewed = means(zipf=0, locality=0), means(zipf=1.5, locality=0)
    assert flat[0] < 1.4 < 2 < skewed[0]
    assert abs(flat[1] - SIZES["top_k"] / SIZES["num_experts"]) < 0.03
    assert means(zipf=0, locality=0.6)[1] > 0.6


def test_sequences_begin_anew_and_have_prompts() -> None:
    trace = synthetic_routes(**SIZES, sequences=3, prompt=10, locality=1.0)
    assert trace.num_sequences == 3
    assert (trace.phase == 0).sum() == 30
    starts = trace.sequence_start[1:-1]
    assert (trace.expert_ids[:, 1:] == trace.expert_ids[:, :-1]).all(-1).sum() >= 4 * (400 - 3)
    assert not (trace.expert_ids[:, starts] == trace.expert_ids[:, starts - 1]).all()


@pytest.mark.parametrize("bad", [{"top_k": 22}, {"locality": 1.5}, {"locality": float("nan")}, {"sequences": 401}])
def test_impossible_sizes_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(bad))):
        synthetic_routes(**{**SIZES, **bad})  # type: ignore[arg-type]


def test_what_is_in_flight_cannot_be_evicted_so_no_lru_collapses() -> None:
    """Spec P5's replay in kind: 16 layers of 64 experts, top-8, a shared pool of 5 %, a prefetcher right in 85 %.

    There an LRU to which a prefetch is no use loses prefetches to the ones after them. Here those of one plan are in
    flight together, and are used before the next plan: only demand can evict one unused.
    """
    trace = synthetic_routes(num_layers=16, num_experts=64, top_k=8, tokens=60)

    def run(evict: str) -> SimResult:
        policy = f"evict={evict},prefetch=oracle:accuracy=0.85"
        return simulate(trace, policy, "5%", pool="shared", mode="decode", max_background=51)

    touch, no_touch, cyclic = run("lru"), run("lru:no-touch"), run("least-stale:cyclic")
    assert touch.hit_rate > 0.7
    assert cyclic.hit_rate >= touch.hit_rate
    assert no_touch.hit_rate > touch.hit_rate - 0.02
    assert touch.experts.collision_misses == cyclic.experts.collision_misses == 0
    assert no_touch.experts.collision_misses < 0.01 * no_touch.accesses
