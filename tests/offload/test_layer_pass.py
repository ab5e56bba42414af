import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smoe.offload.cache import Residency
from smoe.offload.layer_pass import LayerPass
from smoe.offload.policies.lru import LRU

LAYERS = (0, 3, 4)
NUM_EXPERTS = 6


def drive(residency, layer, experts, choose, *, fail_at=None, rolling=None):
    """One pass; `choose(n)` picks which of n transfers arrives next. Returns what the slots held when computed."""
    residency.begin_epoch()
    residency.ask(layer, experts)
    run = LayerPass(residency, layer, experts, rolling=rolling)
    computed = []

    def compute(views):
        for view in views:
            residency.check(view)
            computed.append(view)
        residency.check_integrity()

    under_way = run.start()
    for part in run.parts(run.hits):
        compute(part)
        under_way += run.retire_hits(part)
    while run.unfinished:
        assert rolling is None or len(under_way) <= rolling
        assert under_way, "a pass must never wait for nothing"
        view = under_way.pop(choose(len(under_way)))
        if len(computed) == fail_at:
            for lost in run.abandon():
                assert lost == view or lost in under_way
            break
        run.arrived(view)
        if run.rolls:
            under_way += run.resume()
        for other in under_way:
            residency.check(other)
        compute([view])
        under_way += run.retire([view])
    residency.check_idle()
    return computed


passes = st.lists(
    st.tuples(st.sampled_from(LAYERS), st.sets(st.integers(0, NUM_EXPERTS - 1), min_size=1)), min_size=1, max_size=12
)


@settings(max_examples=300, deadline=None)
@given(
    passes,
    st.integers(1, 3),
    st.integers(0, 7),
    st.integers(0, 2**32),
    st.integers(0, 8),
    st.one_of(st.none(), st.integers(1, 3)),
)
def test_every_expert_is_computed_once_from_its_own_slot(passes, floor, extra, seed, fail_at, rolling):
    residency = Residency(floor * len(LAYERS) + extra, LAYERS, LRU(), floor=floor)
    order = random.Random(seed)
    for index, (layer, experts) in enumerate(passes):
        fail = fail_at if index == len(passes) // 2 else None
        computed = drive(residency, layer, sorted(experts), order.randrange, fail_at=fail, rolling=rolling)
        assert len({view.expert for view in computed}) == len(computed)
        if fail is None:
            assert {view.expert for view in computed} == experts
        for other in LAYERS:
            assert len(residency.resident(other)) <= floor * len(LAYERS) + extra - floor * (len(LAYERS) - 1)


@settings(max_examples=100, deadline=None)
@given(passes, st.integers(1, 3), st.integers(0, 7), st.integers(0, 2**32))
def test_decisions_do_not_depend_on_the_order_of_arrival(passes, floor, extra, seed):
    outcomes = []
    for choose in (lambda n: 0, lambda n: n - 1, random.Random(seed).randrange):
        residency = Residency(floor * len(LAYERS) + extra, LAYERS, LRU(), floor=floor)
        for layer, experts in passes:
            drive(residency, layer, sorted(experts), choose)
        stats = residency.uses.stats()
        counters = (stats.hits, stats.cold_misses, stats.collision_misses, stats.evictions)
        outcomes.append((counters, [residency.resident(layer) for layer in LAYERS]))
    assert outcomes[0] == outcomes[1] == outcomes[2]


def test_hits_are_not_evicted_before_they_are_computed():
    residency = Residency(2, [0], LRU(), floor=2)
    drive(residency, 0, [0, 1], lambda n: 0)
    run = LayerPass(residency, 0, [0, 1, 2, 3])
    assert [view.expert for view in run.hits] == [0, 1]
    assert run.start() == []
    assert [view.expert for view in run.retire_hits()] == [2, 3]


def test_a_rolling_pass_gives_up_a_computed_part_before_hits_to_come():
    residency = Residency(4, [0], LRU(), floor=4)
    drive(residency, 0, [0, 1, 2, 3], lambda n: 0)
    residency.ask(0, [0, 1, 2, 4, 5, 6])
    run = LayerPass(residency, 0, [0, 1, 2, 4, 5, 6], rolling=2)
    begun = run.start()
    assert [view.expert for view in begun] == [4], "3 alone is not pinned"
    parts = run.parts(run.hits)
    assert [[view.expert for view in part] for part in parts] == [[0, 1], [2]]
    begun += run.retire_hits(parts[0])
    assert [view.expert for view in begun] == [4, 5], "two at a time"
    assert set(residency.resident(0)) == {1, 2}
    run.arrived(begun[0])
    assert [view.expert for view in run.resume()] == [6]
    assert run.retire_hits(parts[1]) == []
    assert set(residency.resident(0)) == {2, 4}
    assert run.parts(begun) == [begun], "nothing waits for a slot"


def test_misses_beyond_the_slots_come_in_waves_in_ascending_order():
    residency = Residency(2, [0], LRU(), floor=2)
    run = LayerPass(residency, 0, range(5))
    first = run.start()
    assert [view.expert for view in first] == [0, 1]
    assert run.retire_hits() == []
    for view in first:
        run.arrived(view)
    assert run.retire([first[1]]) == [], "the later one waits for the earlier one"
    assert [view.expert for view in run.retire([first[0]])] == [2, 3]


@pytest.mark.parametrize("experts", [[0], [0, 1, 2]])
def test_counts_of_hits_and_misses(experts):
    residency = Residency(2, [0], LRU(), floor=2)
    for _ in range(3):
        drive(residency, 0, experts, lambda n: 0)
    stats = residency.uses.stats()
    counted = (stats.hits, stats.cold_misses, stats.collision_misses, stats.evictions)
    assert counted == {1: (2, 1, 0, 0), 3: (4, 5, 0, 3)}[len(experts)]


def test_every_order_of_arrival_of_one_wave_ends_alike():
    for order in itertools.permutations(range(3)):
        residency = Residency(3, [0], LRU(), floor=3)
        run = LayerPass(residency, 0, [0, 1, 2, 3])
        views = run.start()
        run.retire_hits()
        begun = []
        for index in order:
            run.arrived(views[index])
            begun += run.retire([views[index]])
        assert [(view.expert, view.slot) for view in begun] == [(3, views[0].slot)]
