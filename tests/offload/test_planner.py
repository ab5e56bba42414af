"""Decisions without an engine: pauses, limits of what is in flight, and what a prefetch may evict."""

import numpy as np
import pytest

from smoe.offload.ahead import PAUSE_EPOCHS
from smoe.offload.cache import Residency
from smoe.offload.distinct import distinct
from smoe.offload.planner import Planner
from smoe.offload.policies.lru import LRU
from smoe.offload.policies.protocols import PolicySet, Routing
from smoe.offload.policies.waiting import Wait

LAYERS = (0, 1)


class Fixed:
    needs_lookahead = True

    def __init__(self, *keys):
        self.keys, self.asked = list(keys), 0

    def plan(self, routing, next_layer, lookahead_logits):
        self.asked += next_layer == 1
        return [key for key in self.keys if key[0] == next_layer]

    def observe(self, routing):
        return


def make(prefetch=None, slots=8, floor=1, **options):
    residency = Residency(slots, LAYERS, LRU(), floor=floor)
    policies = PolicySet(eviction=LRU(), prefetch=prefetch, miss=Wait(), admission=None)
    return residency, Planner(residency, policies, LAYERS, **options)


def routing(layer, experts):
    return Routing(layer=layer, ids=np.array([experts], dtype=np.int32))


def run(planner, layer, experts, *, under_way=()):
    """One pass with transfers that arrive at once. Returns the background views begun."""
    for view in under_way:
        planner.arrived(view)
    step = planner.begin_pass(routing(layer, experts))
    if step is None:
        return []
    views = step.start()
    views += step.retire_hits()
    background = [view for view in views if planner.is_background(view)]
    waited = [*step.late, *(view for view in views if not planner.is_background(view))]
    while step.unfinished:
        view = waited.pop(0)
        step.arrived(view)
        more = step.retire([view])
        background += [view for view in more if planner.is_background(view)]
        waited += [view for view in more if not planner.is_background(view)]
    return background


def test_no_more_in_flight_than_allowed():
    residency, planner = make(Fixed(*[(1, e) for e in range(6)]), max_background=2)
    views = run(planner, 0, [0])
    assert [view[:2] for view in views] == [(1, 0), (1, 1)]
    assert run(planner, 0, [0]) == []
    for view in views:
        planner.arrived(view)
    assert [view[:2] for view in run(planner, 0, [0])] == [(1, 2), (1, 3)]
    assert residency.uses.stats().prefetched == 4


def test_a_deadline_is_the_next_pass_of_the_layer():
    _, planner = make(Fixed((1, 0), (0, 5)))
    deadlines = []
    for layer in (0, 1, 0):
        step = planner.begin_pass(routing(layer, [3]))
        deadlines.append([(view[:2], planner.deadline(view)) for view in [*step.start(), *step.retire_hits()]])
        for view in step.late:
            planner.arrived(view)
        step.abandon()
    assert deadlines == [[((0, 3), 0), ((1, 0), 2)], [((1, 3), 0), ((0, 5), 3)], [((0, 3), 0)]]


def test_demand_has_its_slots_before_prefetches():
    residency, planner = make(Fixed(*[(1, e) for e in range(9)]), slots=4, floor=2, max_background=9)
    views = run(planner, 0, [0, 1, 2, 3])
    assert residency.uses.stats().cold_misses == 4
    assert [view[:2] for view in views] == [(1, 0), (1, 1)], "only into slots that layer 1 can have"


def test_a_prefetch_takes_no_slot_of_the_running_pass():
    residency, planner = make(Fixed((1, 7)), slots=4, floor=1)
    run(planner, 0, [0, 1, 2])
    step = planner.begin_pass(routing(0, [0, 1, 2]))
    assert step.all_hits
    step.start()
    assert set(residency.resident(0)) == {0, 1, 2}
    step.retire_hits()


@pytest.mark.parametrize("pays", [True, False])
def test_prefetching_that_does_not_pay_pauses(pays):
    prefetch = Fixed((1, 0), (1, 1))
    _, planner = make(prefetch, slots=4, floor=2, max_background=4, pause_share=0.9, pause_window=20)
    used = [0, 1, 2, 3] if pays else [2, 3]
    under_way = []
    asked = []
    for _ in range(3 * PAUSE_EPOCHS):
        planner.begin_forward()
        asked.append(prefetch.asked)
        under_way = run(planner, 0, [4, 5], under_way=under_way)
        under_way = run(planner, 1, used, under_way=under_way)
    assert planner.stats().prefetch_pauses == (0 if pays else 3)
    if not pays:
        assert asked.count(asked[PAUSE_EPOCHS]) == PAUSE_EPOCHS + 1, "then tried again"
        assert prefetch.asked > asked[PAUSE_EPOCHS]


def test_look_ahead_is_wanted_for_every_layer_but_the_last():
    _, planner = make(Fixed())
    assert [planner.wants_lookahead(layer) for layer in LAYERS] == [True, False]
    _, planner = make(None)
    assert not planner.wants_lookahead(0)


def test_a_pass_of_hits_needs_no_pass_unless_something_is_prefetched():
    for prefetch, expected in ((None, True), (Fixed(), False)):
        _, planner = make(prefetch)
        run(planner, 0, [3, 1])
        assert (planner.begin_pass(routing(0, [1, 3])) is None) == expected


def test_admissions_wait_for_room():
    residency, planner = make(None, slots=2, floor=1, max_background=1)
    planner._answers.to_admit.update({(1, 4): None, (1, 5): None})
    views = run(planner, 0, [0])
    assert [view[:2] for view in views] == [(1, 4)]
    planner.arrived(views[0])
    assert [view[:2] for view in run(planner, 0, [0])] == [(1, 5)]
    assert residency.uses.stats().admitted == 2


def test_distinct_of_many_and_few():
    ids = np.random.default_rng(0).integers(0, 50, (300, 8), dtype=np.int32)
    assert distinct(ids) == sorted(set(ids.ravel().tolist()))
    assert distinct(ids[:4]) == sorted(set(ids[:4].ravel().tolist()))
