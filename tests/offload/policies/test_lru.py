from smoe.offload.policies.lru import LRU


def anyone(layer, expert):
    return True


def filled(*experts, layer=0):
    policy = LRU()
    for expert in experts:
        policy.admit(layer, expert)
    return policy


def test_the_oldest_admission_goes_first():
    assert filled(5, 2, 9).victim([0], anyone) == (0, 5)


def test_a_touch_makes_young_in_the_order_given():
    policy = filled(1, 2, 3, 4)
    policy.touch(0, [2, 1])
    order = []
    while (victim := policy.victim([0], anyone)) is not None:
        order.append(victim[1])
        policy.forget(*victim)
    assert order == [3, 4, 2, 1]


def test_only_evictable_experts_of_the_layers_allowed():
    policy = filled(1, 2, 3)
    policy.admit(7, 1)
    assert policy.victim([0, 7], lambda layer, expert: (layer, expert) not in {(0, 1), (0, 2)}) == (0, 3)
    assert policy.victim([7], anyone) == (7, 1)
    assert policy.victim([0], lambda layer, expert: False) is None
    assert policy.victim([5], anyone) is None


def test_age_counts_across_layers():
    policy = filled(1, 2)
    policy.admit(7, 1)
    policy.touch(0, [1, 2])
    assert policy.victim([0, 7], anyone) == (7, 1)


def test_choosing_changes_nothing():
    policy = filled(1, 2)
    assert [policy.victim([0], anyone) for _ in range(3)] == [(0, 1)] * 3
