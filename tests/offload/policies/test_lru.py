from smoe.offload.policies.lru import LRU
from tests.offload.policies.support import D, P, anyone, leave


def filled(*experts, layer=0, **options):
    policy = LRU(**options)
    for expert in experts:
        policy.admit(layer, expert, D)
    return policy


def test_the_oldest_admission_goes_first():
    assert leave(filled(5, 2, 9)) == [(0, 5), (0, 2), (0, 9)]


def test_a_touch_makes_young_in_the_order_given():
    policy = filled(1, 2, 3, 4)
    policy.touch(0, [2, 1])
    assert leave(policy) == [(0, 3), (0, 4), (0, 2), (0, 1)]


def test_only_evictable_experts_of_the_layers_allowed():
    policy = filled(1, 2, 3)
    policy.admit(7, 1, D)
    assert policy.victim([0, 7], lambda layer, expert: (layer, expert) not in {(0, 1), (0, 2)}, (0, 4), D) == (0, 3)
    assert policy.victim([7], anyone, (0, 4), D) == (7, 1)
    assert policy.victim([0], lambda layer, expert: False, (0, 4), D) is None
    assert policy.victim([5], anyone, (0, 4), D) is None


def test_age_counts_across_layers():
    policy = filled(1, 2)
    policy.admit(7, 1, D)
    policy.touch(0, [1, 2])
    assert policy.victim([0, 7], anyone, (0, 4), D) == (7, 1)


def test_choosing_changes_nothing():
    policy = filled(1, 2)
    assert [policy.victim([0], anyone, (0, 4), D) for _ in range(3)] == [(0, 1)] * 3


def test_a_prefetch_is_a_use_or_is_not():
    # Demanded 1, 2; prefetched 8, 9; confirmed 1. As uses: 2, 8, 9, 1. Otherwise unused ones first: 8, 9, then 1, 2.
    for options, order in (({}, [2, 8, 9, 1]), ({"prefetch_touch": False}, [8, 9, 1, 2])):
        policy = filled(1, 2, **options)
        policy.admit(0, 8, P)
        policy.admit(0, 9, P)
        policy.confirm(0, [1])
        assert [expert for _, expert in leave(policy)] == order, options


def test_a_prefetched_expert_that_was_used_is_like_any_other():
    policy = filled(1, 2, prefetch_touch=False)
    policy.admit(0, 8, P)
    policy.touch(0, [8])
    policy.confirm(0, [1])
    assert [expert for _, expert in leave(policy)] == [1, 2, 8]
