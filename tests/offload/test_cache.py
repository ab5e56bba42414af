"""What is resident and what is under way."""

import numpy as np
import pytest

from smoe.offload.cache import Residency
from smoe.offload.policies.catalog import EVICT, Geometry
from smoe.offload.policies.params import Word
from smoe.offload.policies.protocols import Reason, Routing
from smoe.offload.policies.spec import parse_policies
from tests.offload.residencies import load, make, prefetch

NAMES = [
    f"evict={name}{word and ':' + word}"
    for name, policy in EVICT.items()
    for word in next((param.choices for param in policy.params.values() if isinstance(param, Word)), ("",))
    if not policy.needs_future
]


def test_all_hits_or_nothing_changes():
    residency = make(2)
    load(residency, 0, 0)
    load(residency, 0, 1)
    assert not residency.try_hit_all(0, [0, 2])
    assert residency.uses.stats().hits == 0
    assert residency.try_hit_all(0, [0])
    assert residency.uses.stats().hits == 1
    load(residency, 0, 2)
    assert set(residency.resident(0)) == {0, 2}, "the hit made 0 the younger one"


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
        (lambda r: r._slots._free.append(r._slots._free[0]), "not a partition"),
        (lambda r: r._slots.resident[0].popitem(), "not a partition"),
        (lambda r: r._slots._owner.__setitem__(0, (0, 9)), "owners differ"),
        (lambda r: r._victims._floors._held.__setitem__(0, 2), "miscounted"),
        (lambda r: r._slots._pins.__setitem__(2, 1), "pin on a slot"),
    ],
)
def test_integrity_check_sees(damage, message):
    residency = make(3)
    load(residency, 0, 0)
    residency.check_integrity()
    damage(residency)
    with pytest.raises(RuntimeError, match=message):
        residency.check_integrity()


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
        stats = residency.uses.stats()
        assert (stats.late, stats.hits) == ((1, 1) if late else (0, 2))
        residency.check_integrity()
        return gone

    assert victims(late=True) == victims(late=False)
