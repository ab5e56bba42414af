"""What a draft foretells, without an engine: plans that replace each other, and what may be in flight."""

import numpy as np
import pytest

from smoe.offload.cache import Residency
from smoe.offload.planner import Planner
from smoe.offload.policies.lru import LRU
from smoe.offload.policies.protocols import PolicySet, Routing
from smoe.offload.policies.waiting import Wait

LAYERS = (0, 1, 2)


def make(slots=6, floor=2, *, eviction=None, **options):
    residency = Residency(slots, LAYERS, eviction or LRU(), floor=floor)
    policies = PolicySet(eviction=residency._eviction, prefetch=None, miss=Wait(), admission=None)
    return residency, Planner(residency, policies, LAYERS, **options)


def fill(residency, planner, experts):
    """One forward that asks every layer for `experts`."""
    planner.begin_forward()
    for layer in LAYERS:
        pass_layer(planner, layer, experts)


def pass_layer(planner, layer, experts):
    """What it waited for arrives in order. Returns the background views begun."""
    run = planner.begin_pass(Routing(layer=layer, ids=np.array([experts], dtype=np.int32)))
    if run is None:
        return []
    for view in run.stale:
        planner.cancelled(view)
    begun = [*run.start(), *run.retire_hits()]
    waited = [*run.late, *(view for view in begun if run.awaits(view))]
    while run.unfinished:
        view = waited.pop(0)
        run.arrived(view)
        more = run.retire([view])
        begun += more
        waited += [view for view in more if run.awaits(view)]
    return [view for view in begun if planner.is_background(view)]


def foretell(planner, *keys):
    """Transfers of earlier plans are all taken back. Returns those, and those begun."""
    gone = planner.foretell(keys)
    for view in gone:
        planner.cancelled(view)
    return [view[:2] for view in gone], planner.start()


def test_residents_are_marked_used_and_the_rest_is_reserved_in_layer_order():
    residency, planner = make()
    fill(residency, planner, [0, 1])
    _, begun = foretell(planner, (2, 4), (0, 0), (1, 5))
    assert [view[:2] for view in begun] == [(1, 5), (2, 4)]
    assert [planner.deadline(view) for view in begun] == [5, 6], "the 3 passes so far, then its place"
    assert planner.stats().prefetched == 2
    planner.arrived(begun[0])
    assert set(residency.resident(1)) == {1, 5}, "0 was used longest ago"
    _, more = foretell(planner, (2, 4), (0, 0), (1, 5), (0, 7))
    assert [view[:2] for view in more] == [(0, 7)]
    assert set(residency.resident(0)) == {0}, "marked as used, so 1 went"
    assert planner.submitted == 3


def test_a_plan_evicts_none_of_its_own():
    residency, planner = make()
    fill(residency, planner, [0, 1])
    _, begun = foretell(planner, (0, 0), (0, 1), (0, 2))
    assert begun == [], "both slots of layer 0 are in the plan"
    assert set(residency.resident(0)) == {0, 1}
    _, begun = foretell(planner, (0, 1), (0, 2))
    assert [view[:2] for view in begun] == [(0, 2)]
    assert set(residency.resident(0)) == {1}


def test_what_the_newest_plan_does_not_name_is_taken_back():
    residency, planner = make()
    fill(residency, planner, [0, 1])
    foretell(planner, (0, 4), (1, 4))
    gone, begun = foretell(planner, (1, 4), (2, 4))
    assert gone == [(0, 4)]
    assert [view[:2] for view in begun] == [(2, 4)]
    stats = planner.stats()
    assert (stats.cancelled, stats.wasted, stats.prefetched) == (1, 1, 3)
    residency.check_idle()


def test_what_has_begun_stays_and_is_named_again_next_time():
    _, planner = make()
    _, (view,) = foretell(planner, (0, 4))
    assert planner.foretell([(1, 4)]) == [view]
    planner.start()  # the store had it already
    assert planner.foretell([(1, 4)]) == [view]
    assert planner.foretell([(0, 4)])[0][:2] == (1, 4)


def test_no_more_in_flight_than_allowed_and_the_rest_follows():
    residency, planner = make(slots=12, floor=4, max_planned=2)
    _, begun = foretell(planner, (2, 1), (0, 1), (1, 1), (0, 2))
    assert [view[:2] for view in begun] == [(0, 1), (0, 2)]
    assert planner.more() == []
    planner.arrived(begun[0])
    (third,) = planner.more()
    assert third[:2] == (1, 1)
    assert planner.submitted == 4
    planner.foretell([(2, 1), (0, 1), (1, 1), (0, 2)])
    planner.start()
    assert planner.submitted == 4, "asked for before"
    assert residency.uses.stats().prefetched == 3


def test_during_the_forward_only_layers_to_come_follow():
    _, planner = make(slots=12, floor=4, max_planned=1)
    _, (first,) = foretell(planner, (0, 1), (0, 2), (1, 1), (2, 1))
    planner.arrived(first)
    planner.begin_forward()
    (second,) = pass_layer(planner, 0, [1])
    assert second[:2] == (1, 1), "(0, 2) is too late"
    planner.arrived(second)
    assert [view[:2] for view in pass_layer(planner, 1, [1])] == [(2, 1)]


def test_half_of_the_slots_may_be_in_flight():
    _, planner = make(slots=6, floor=2)
    _, begun = foretell(planner, *[(layer, expert) for layer in LAYERS for expert in (1, 2)])
    assert len(begun) == 3


@pytest.mark.parametrize(
    ("order", "first", "second"),
    [
        ("deadline", [((1, 4), 5), ((2, 4), 6)], [((0, 4), 4)]),
        ("submitted", [((1, 4), 4), ((2, 4), 4)], [((0, 4), 4)]),
        ("named", [((2, 4), 4), ((1, 4), 4)], [((0, 4), 4)]),
    ],
)
def test_orders(order, first, second):
    residency, planner = make(slots=12, floor=4, plan_order=order)
    fill(residency, planner, [0])
    _, begun = foretell(planner, (2, 4), (1, 4))
    assert [(view[:2], planner.deadline(view)) for view in begun] == first
    _, begun = foretell(planner, (2, 4), (1, 4), (0, 4))
    assert [(view[:2], planner.deadline(view)) for view in begun] == second


def test_a_waited_for_transfer_is_urgent_in_every_order():
    for order in ("deadline", "submitted", "named"):
        _, planner = make(plan_order=order)
        _, (view,) = foretell(planner, (0, 4))
        planner.begin_forward()
        run = planner.begin_pass(Routing(layer=0, ids=np.array([[4]], dtype=np.int32)))
        assert run.late == [view]
        assert planner.deadline(view) == 0


def test_the_epoch_of_the_forward_begins_with_its_draft():
    """So that an expert brought in for it and evicted since is a collision, and Least-Stale holds it to be current."""
    residency, planner = make(slots=3, floor=1)
    fill(residency, planner, [0])
    epoch = residency.uses.epoch
    _, (view,) = foretell(planner, (0, 4))
    planner.arrived(view)
    foretell(planner, (0, 4))
    planner.begin_forward()
    assert residency.uses.epoch == epoch + 1
    pass_layer(planner, 0, [5])
    planner.begin_forward()
    assert residency.uses.epoch == epoch + 2
    _, (view,) = foretell(planner, (1, 4))
    planner.arrived(view)
    planner.begin_forward()
    pass_layer(planner, 1, [5])
    pass_layer(planner, 1, [4])
    assert planner.stats().collision_misses == 1


def test_a_pass_of_hits_is_no_pass_when_nothing_waits():
    residency, planner = make(max_planned=1)
    fill(residency, planner, [0])
    foretell(planner, (1, 3), (2, 3))
    planner.begin_forward()
    routing = Routing(layer=0, ids=np.array([[0]], dtype=np.int32))
    run = planner.begin_pass(routing)
    assert run is not None
    assert run.all_hits
    run.start()
    run.retire_hits()
    (view,) = residency.background()
    planner.arrived(view)
    assert [view[:2] for view in planner.more()] == [(2, 3)]
    assert planner.begin_pass(routing) is None
