import pytest

from smoe.offload.policies.admission import Background, Resetting
from smoe.offload.policies.lru import LRU
from tests.offload.policies.support import D, anyone


def test_the_mass_substituted_adds_up_to_a_load():
    # 0.2 + 0.25 < 0.5 <= 0.2 + 0.25 + 0.05; expert 2 and the same expert of layer 1 have sums of their own.
    admission = Background(beta=0.5)
    assert admission.bypassed(0, [1, 2], [0.2, 0.1]) == []
    assert admission.bypassed(1, [1], [0.4]) == []
    assert admission.bypassed(0, [1], [0.25]) == []
    assert admission.bypassed(0, [1, 2], [0.05, 0.1]) == [(0, 1)]
    # From zero again.
    assert admission.bypassed(0, [1], [0.45]) == []
    assert admission.bypassed(0, [1], [0.05]) == [(0, 1)]


def test_enough_at_once():
    assert Background(beta=0.5).bypassed(3, [4, 5, 6], [0.5, 0.49, 0.9]) == [(3, 4), (3, 6)]


@pytest.mark.parametrize("event", ["admit", "forget"])
def test_a_slot_got_or_lost_starts_the_sum_again(event):
    admission = Background(beta=0.5)
    eviction = Resetting(LRU(), admission)
    if event == "forget":
        eviction.admit(0, 1, D)
    admission.bypassed(0, [1, 2], [0.4, 0.4])
    eviction.admit(0, 1, D) if event == "admit" else eviction.forget(0, 1)
    assert admission.bypassed(0, [1, 2], [0.2, 0.2]) == [(0, 2)]


def test_everything_else_is_the_policys_own():
    eviction = Resetting(LRU(), Background())
    for expert in (1, 2):
        eviction.admit(0, expert, D)
    eviction.begin_epoch()
    eviction.begin_layer(0)
    eviction.touch(0, [1])
    assert eviction.victim([0], anyone, (0, 3), D) == (0, 2)
    eviction.confirm(0, [2])
    assert eviction.victim([0], anyone, (0, 3), D) == (0, 1)
