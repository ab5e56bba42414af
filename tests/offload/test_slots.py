"""Who may use what lies in a slot."""

import pickle

import pytest

from smoe.offload.slots import View
from tests.offload.residencies import load, make


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


def test_views_pickle():
    assert pickle.loads(pickle.dumps(View(1, 2, 3, 4))) == View(1, 2, 3, 4)
