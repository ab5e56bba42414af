import pickle

import numpy as np
import pytest

from smoe.offload.cache import Residency, View
from smoe.offload.policies.catalog import EVICT, Geometry
from smoe.offload.policies.lru import LRU
from smoe.offload.policies.params import Word
from smoe.offload.policies.protocols import Reason, Routing
from smoe.offload.policies.spec import parse_policies

NAMES = [
    f"evict={name}{word and ':' + word}"
    for name, policy in EVICT.items()
    for word in next((param.choices for param in policy.params.values() if isinstance(param, Word)), ("",))
    if not policy.needs_future
]


def make(num_slots=3, layers=(0,), floor=None):
    return Residency(num_slots, layers, LRU(), floor=num_slots // len(layers) if floor is None else floor)


def load(residency, layer, expert):
    residency.ask(layer, [expert])
    view = residency.try_reserve(layer, expert)
    assert view is not None
    residency.commit(view)
    residency.unpin(view)
    return view


@pytest.mark.parametrize("floor", [0, 2])
def test_floor_out_of_range(floor):
    with pytest.raises(ValueError, match=rf"^floor: {floor} \(1 up to 3 slots / 2 layers\)$"):
        make(3, (0, 1), floor=floor)


def test_a_view_is_stale_once_its_slot_is_given_away():
    residency = make(1)
    old = load(residency, 0, 5)
    residency.check(old)
    new = residency.try_reserve(0, 6)
    assert new.slot == old.slot
    with pytest.raises(RuntimeError, match=r"slot 0: view of layer 0 expert 5 generation 1, but .* generation 3"):
        residency.check(old)
    residency.commit(new)
    residency.unpin(new)
    assert load(residency, 0, 5) != old


def test_a_view_of_another_expert_is_refused():
    residency = make(1)
    view = load(residency, 0, 5)
    with pytest.raises(RuntimeError, match="expert 4"):
        residency.check(View(0, 4, view.slot, view.generation))


def test_pinned_and_in_flight_slots_are_never_victims():
    residency = make(2)
    pinned = residency.try_reserve(0, 0)
    residency.commit(pinned)
    in_flight = residency.try_reserve(0, 1)
    assert residency.try_reserve(0, 2) is None
    residency.unpin(pinned)
    assert residency.try_reserve(0, 2).slot == pinned.slot
    assert residency.try_reserve(0, 3) is None
    residency.fail(in_flight)
    assert residency.try_reserve(0, 3).slot == in_flight.slot
    residency.check_integrity()


def test_a_slot_pinned_twice_needs_two_unpins():
    residency = make(1)
    view = load(residency, 0, 0)
    assert residency.pin(0, [0, 1]) == [view]
    assert residency.pin(0, [0]) == [view]
    residency.unpin(view)
    assert residency.try_reserve(0, 1) is None
    residency.unpin(view)
    with pytest.raises(RuntimeError, match="unpinned more often"):
        residency.unpin(view)
    assert residency.try_reserve(0, 1) is not None


def test_free_slots_owed_to_a_floor_are_not_handed_to_others():
    residency = make(4, (0, 1), floor=1)
    for expert in range(3):
        load(residency, 0, expert)
    assert residency.evictions == 0
    load(residency, 0, 3)
    assert residency.evictions == 1, "the fourth slot belongs to layer 1"
    load(residency, 1, 0)
    assert residency.evictions == 1


def test_a_layer_above_its_floor_loses_to_one_that_wants_more():
    residency = make(4, (0, 1), floor=1)
    for expert in range(3):
        load(residency, 0, expert)
    for expert in range(3):
        load(residency, 1, expert)
    assert set(residency.resident(0)) == {2}, "oldest first, down to the floor"
    assert set(residency.resident(1)) == {0, 1, 2}
    load(residency, 1, 3)
    assert set(residency.resident(0)) == {2}
    assert set(residency.resident(1)) == {1, 2, 3}
    residency.check_idle()


def test_all_hits_or_nothing_changes():
    residency = make(2)
    load(residency, 0, 0)
    load(residency, 0, 1)
    assert not residency.try_hit_all(0, [0, 2])
    assert residency.hits == 0
    assert residency.try_hit_all(0, [0])
    assert residency.hits == 1
    load(residency, 0, 2)
    assert set(residency.resident(0)) == {0, 2}, "the hit made 0 the younger one"


def test_a_collision_is_a_miss_of_what_the_same_epoch_brought_in():
    residency = make(1)
    for expert in (0, 1, 0):
        load(residency, 0, expert)
    assert (residency.cold_misses, residency.collision_misses, residency.compulsory_misses) == (2, 1, 2)
    residency.begin_epoch()
    load(residency, 0, 1)
    assert (residency.cold_misses, residency.collision_misses, residency.compulsory_misses) == (3, 1, 2)
    assert (residency.evictions, residency.peak_used) == (3, 1)


def prefetch(residency, layer, expert):
    view = residency.try_reserve(layer, expert, Reason.PREFETCH)
    assert view is not None
    return view


def counts(residency):
    return (residency.prefetched, residency.prefetch_used, residency.late, residency.wasted, residency.hits)


def test_a_prefetch_ends_used_late_or_wasted():
    residency = make(4)
    for expert in range(4):
        view = prefetch(residency, 0, expert)
        if expert != 1:
            residency.commit(view)
    assert residency.ask(0, [0, 1]) == []
    assert counts(residency) == (4, 1, 1, 0, 1)
    (late,) = residency.claim(0, [0, 1])
    residency.commit(late)
    residency.unpin(late)
    residency.check_idle()
    for expert in range(4, 8):
        load(residency, 0, expert)
    assert counts(residency) == (4, 1, 1, 2, 1)
    assert residency.ask(0, [2]) == [2]
    assert residency.collision_misses == 1, "brought in and evicted within this epoch"


def test_a_hit_uses_a_prefetch_once():
    residency = make(2)
    residency.commit(prefetch(residency, 0, 0))
    assert residency.try_hit_all(0, [0])
    assert residency.ask(0, [0]) == []
    assert counts(residency) == (1, 1, 0, 0, 2)


def test_a_failed_prefetch_is_wasted_unless_it_was_asked_for():
    residency = make(2)
    first, second = prefetch(residency, 0, 0), prefetch(residency, 0, 1)
    residency.check_idle()
    residency.ask(0, [1])
    residency.fail(first)
    residency.fail(second)
    assert counts(residency) == (2, 0, 1, 1, 0)
    residency.check_idle()


def test_background_transfers_by_layer():
    residency = make(4, (0, 1))
    views = [prefetch(residency, layer, 3) for layer in (0, 1)]
    assert residency.background(0) == views[:1]
    assert residency.background_in_flight == 2
    residency.claim(0, [3])
    assert residency.background(0) == []
    assert not residency.is_background(views[0])
    assert residency.is_background(views[1])


def test_idle_means_no_pin_and_no_transfer():
    residency = make(2)
    view = residency.try_reserve(0, 0)
    residency.check_integrity()
    with pytest.raises(RuntimeError, match="0 pins, 1 transfers left over"):
        residency.check_idle()
    residency.commit(view)
    with pytest.raises(RuntimeError, match="1 pins, 0 transfers left over"):
        residency.check_idle()
    residency.unpin(view)
    residency.check_idle()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda r: r._free.append(r._free[0]), "not a partition"),
        (lambda r: r._slot_of[0].popitem(), "not a partition"),
        (lambda r: r._owner.__setitem__(0, (0, 9)), "owners differ"),
        (lambda r: r._floors._held.__setitem__(0, 2), "miscounted"),
        (lambda r: r._pins.__setitem__(2, 1), "pin on a slot"),
    ],
)
def test_integrity_check_sees(damage, message):
    residency = make(3)
    load(residency, 0, 0)
    residency.check_integrity()
    damage(residency)
    with pytest.raises(RuntimeError, match=message):
        residency.check_integrity()


def test_views_pickle():
    assert pickle.loads(pickle.dumps(View(1, 2, 3, 4))) == View(1, 2, 3, 4)


@pytest.mark.parametrize("text", NAMES)
def test_a_late_expert_is_used_as_one_that_came_in_time_is(text):
    """Whatever the policy, what leaves afterwards, and in what order, does not depend on when the prefetch arrived."""

    def victims(late):
        policies = parse_policies(text).build(Geometry(layers=(0,), num_experts=9, top_k=2), seed=1)
        residency = Residency(4, (0,), policies.eviction, floor=4)
        for experts, prefetched in (([1, 2], None), ([3], 5), ([1, 5], None)):
            residency.begin_epoch()
            residency.begin_layer(Routing(layer=0, ids=np.array([experts]), weights=np.full((1, len(experts)), 0.5)))
            views = [residency.try_reserve(0, expert) for expert in residency.ask(0, experts)]
            views += residency.claim(0, experts)
            if prefetched is not None:
                ahead = residency.try_reserve(0, prefetched, Reason.PREFETCH)
            for view in views:
                residency.commit(view)
                residency.unpin(view)
            if prefetched is not None and not late:
                residency.commit(ahead)
        gone = []
        for expert in (6, 7, 8):
            before = set(residency.resident(0))
            residency.commit(residency.try_reserve(0, expert))
            gone += before - set(residency.resident(0))
        assert (residency.late, residency.hits) == ((1, 1) if late else (0, 2))
        residency.check_integrity()
        return gone

    assert victims(late=True) == victims(late=False)
