"""`smoe bench cache`: grid, winners, contests, SpecMD's pool."""

import csv
from pathlib import Path

import numpy as np
import pytest

from smoe.bench.cache import run as cache_run
from smoe.bench.cache.grid import EVICTIONS, GATES, Point, capacities, points
from smoe.bench.cache.open_pool import OpenPool
from smoe.bench.cache.points import groups
from smoe.bench.cache.report import explain, least_stale_figures, print_winners, winner_figures
from smoe.bench.cache.rows import Row
from smoe.bench.cache.winners import contests, ratio, tally, winners
from smoe.core.route_trace import DECODE, RouteTrace
from smoe.offload.policies.catalog import Geometry
from smoe.offload.policies.spec import parse_policies
from smoe.sim.passes import blocks, future


def trace(passes: list[list[list[int]]], *, experts: int = 8, lookahead: bool = False) -> RouteTrace:
    """`passes[token][layer]` are expert ids."""
    ids = np.array(passes, dtype=np.int16).transpose(1, 0, 2)
    layers, tokens, top_k = ids.shape
    return RouteTrace(
        fingerprint="f",
        num_experts=experts,
        top_k=top_k,
        layers=tuple(range(layers)),
        token_ids=np.zeros(tokens, dtype=np.int32),
        sequence_start=np.array([0, tokens], dtype=np.int64),
        phase=np.full(tokens, DECODE, dtype=np.uint8),
        expert_ids=ids,
        lookahead_logits=np.zeros((layers, tokens, experts), dtype=np.float16) if lookahead else None,
    )


def drawn(tokens: int, layers: int = 3, experts: int = 8, top_k: int = 2, *, lookahead: bool = False) -> RouteTrace:
    chance = np.random.default_rng(0)
    return trace(
        [[chance.choice(experts, top_k, replace=False).tolist() for _ in range(layers)] for _ in range(tokens)],
        experts=experts,
        lookahead=lookahead,
    )


def replay_open(routes: RouteTrace, policy: str, num_slots: int) -> OpenPool:
    geometry = Geometry(layers=routes.layers, num_experts=routes.num_experts, top_k=routes.top_k)
    policies = parse_policies(policy).build(geometry, future=future(routes, "decode", 1))
    pool = OpenPool(num_slots, policies, routes.layers)
    for _, block in blocks(routes, "decode", 1, routing=True, lookahead=False):
        for forward in block:
            pool.begin_forward()
            for each in forward:
                pool.run_layer(*each)
    return pool


def made(eviction: str, hits: int, *, collisions: int = 0, prefetch: str = "oracle", pool: str = "open") -> Row:
    point = Point(
        trace="t",
        mode="decode",
        percent=5.0,
        num_slots=3,
        pool=pool,
        eviction=eviction,
        prefetch=prefetch,  # type: ignore[arg-type]
    )
    return Row(
        point=point,
        accesses=1000,
        hits=hits,
        cold=1000 - hits - collisions,
        collisions=collisions,
        late=0,
        prefetched=0,
        wasted=0,
        transfers=0,
        tokens=10,
    )


def test_capacities_never_go_below_the_least_and_say_each_number_once() -> None:
    t = drawn(1)
    assert capacities(t, (1.0, 5.0, 10.0, 25.0, 50.0), least=3) == [(10.0, 3), (25.0, 6), (50.0, 12)]
    assert capacities(t, (1.0, 5.0), least=1) == [(5.0, 1)]


def test_gate_prefetch_is_simulated_only_where_the_trace_can_look_ahead() -> None:
    without = {p.prefetch for p in points("t", drawn(1), "decode")}
    assert not without & set(GATES)
    assert {p.prefetch for p in points("t", drawn(1, lookahead=True), "decode")} >= set(GATES)


def test_every_region_has_random_belady_and_every_eviction() -> None:
    regions: dict[object, set[str]] = {}
    for point in points("t", drawn(1), "decode"):
        regions.setdefault(point.region, set()).add(point.eviction)
        parse_policies(point.policy)
    assert all(evictions == set(EVICTIONS) for evictions in regions.values())


def test_winners_leave_belady_out_and_keep_ties() -> None:
    rows = [made("random", 200), made("lru", 500), made("lfru", 500), made("fifo", 498), made("belady", 600)]
    [winner] = winners(rows)
    assert winner.policies == ("lru", "lfru")
    assert winner.closed == pytest.approx(0.75)


def test_no_way_to_belady_where_random_is_as_good() -> None:
    [winner] = winners([made("random", 200), made("belady", 200)])
    assert winner.closed is None
    assert winner_figures([winner])[0].value is None


def test_belady_is_called_a_ceiling_only_where_nothing_is_prefetched(capsys: pytest.CaptureFixture[str]) -> None:
    ahead = [made("random", 200), made("lru", 630), made("belady", 600)]
    demand = [made(row.point.eviction, row.hits, prefetch="none") for row in (*ahead[::2], made("lru", 500))]
    found = winners([*ahead, *demand])
    assert [w.beats_belady for w in sorted(found, key=lambda w: w.region.prefetch)] == [False, True]
    figures = {f.figure: f for f in winner_figures(found) if "Belady is" in f.figure}
    only, with_prefetch = sorted(figures)
    assert "demand only, where Belady is a ceiling" in only
    assert figures[only].value == 0
    assert "with prefetch, where Belady is no ceiling" in with_prefetch
    assert figures[with_prefetch].value == 1
    assert "most by 3.0 points: lru" in (figures[with_prefetch].bound or "")
    print_winners(found)
    assert "a ceiling where prefetch is none" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(("hits", "verdict"), [(700, "wins"), (650, "ties"), (600, "loses")])
def test_least_stale_is_judged_by_its_best_variant_against_every_other(hits: int, verdict: str) -> None:
    rows = [
        made("random", 100),
        made("lru", 650, collisions=2),
        made("lru:no-touch", 100, collisions=90),
        made("least-stale:fifo", hits - 50, collisions=3),
        made("least-stale:cyclic", hits, collisions=1),
        made("belady", 800),
    ]
    [contest] = contests(rows)
    assert contest.variant == "least-stale:cyclic"
    assert contest.verdict == verdict
    assert tally([contest])[verdict] == 1
    assert contest.gain_no_touch == pytest.approx((hits - 100) / 1000)
    assert (contest.collisions, contest.collisions_touch, contest.collisions_no_touch) == (1, 2, 90)
    assert "lru:no-touch 90" in explain(contest)
    figures = {f.figure: f for f in least_stale_figures([contest])}
    assert figures["Least-Stale, SpecMD's pool, with prefetch: regions won"].value == (verdict == "wins")


def test_ratio_of_nothing_is_nothing() -> None:
    assert ratio(5, 0) is None
    assert ratio(6, 4) == 1.5


def test_open_pool_counts_what_was_fetched_ahead_and_lost_within_the_forward_as_a_collision() -> None:
    # Two slots, two layers of two experts each: under LRU without touch the second prefetch takes the first one's slot.
    passes = [[[0, 1], [2, 3]]] * 3
    lost = replay_open(trace(passes), "evict=lru:no-touch,prefetch=oracle:accuracy=1.0", 2)
    kept = replay_open(trace(passes), "evict=lru,prefetch=oracle:accuracy=1.0", 2)
    assert (kept.collisions, kept.hits) == (0, 10)
    assert lost.collisions > 0
    assert lost.hits + lost.cold + lost.collisions == kept.hits + kept.cold + kept.collisions == 12


def test_open_pool_without_prefetch_agrees_with_a_plain_lru() -> None:
    t = drawn(200)
    pool = replay_open(t, "evict=lru", 7)
    order: list[tuple[int, int]] = []
    hits = 0
    for token in range(200):
        for layer in range(3):
            for expert in sorted(t.expert_ids[layer, token].tolist()):
                hits += (layer, expert) in order
                order = [key for key in order if key != (layer, expert)] + [(layer, expert)]
                order = order[-7:]
    assert pool.hits == hits
    assert pool.transfers == 200 * 6 - hits


def test_a_run_writes_rows_winners_and_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_run, "open_trace", lambda name: drawn(24, lookahead=name == "builtin"))
    seen = []

    def backwards(function, items, common):  # type: ignore[no-untyped-def]
        for index in reversed(range(len(items))):
            yield index, function(items[index], common)

    result = cache_run.run(quick=True, out=tmp_path, fan_out=backwards, on_progress=lambda *at: seen.append(at))
    with open(tmp_path / str(result.samples["rows"])) as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == result.config["points"]
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    assert seen[-1] == (len(rows), len(rows))
    assert all(r["accesses"] == str(24 * 6) for r in rows if r["mode"] == "decode")
    assert {f.figure for f in result.summary} >= {
        "simulator, one core, gpt-oss-20b decode, prefetch none: median over evictions"
    }
    pictures = {path.name for path in tmp_path.glob("*.png")}
    assert "cache-quick-collisions.png" in pictures
    assert "cache-quick-builtin-layer.png" in pictures


def test_a_trace_of_ones_own_is_replayed_by_a_hundred_combinations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_run, "open_trace", lambda name: drawn(8, layers=2, experts=128))
    monkeypatch.setattr(cache_run, "WHOLE_TOKENS", 100)
    result = cache_run.run(quick=False, out=tmp_path, trace="mine.safetensors")
    assert result.name == "cache-whole"
    assert result.config["points"] == 100
    assert result.config["traces"]["mine.safetensors"]["tokens"] == 100  # type: ignore[index]
    assert (tmp_path / "cache-whole-mine.safetensors-shared.png").exists()


def test_a_trace_is_repeated_to_the_token() -> None:
    found = cache_run.repeated(drawn(8), 20)
    found.validate()
    assert found.sequence_start.tolist() == [0, 8, 16, 20]
    assert (found.expert_ids[:, 16:] == drawn(8).expert_ids[:, :4]).all()


def test_groups_are_of_one_trace_and_take_turns() -> None:
    todo = [*points("a", drawn(1), "decode"), *points("b", drawn(1), "prefill")]
    found = groups(todo)
    assert sorted(index for group in found for index in group) == list(range(len(todo)))
    assert [{todo[index].trace for index in group} for group in found[:4]] == [{"a"}, {"b"}, {"a"}, {"b"}]
