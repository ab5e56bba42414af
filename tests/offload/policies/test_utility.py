import numpy as np
import pytest

from smoe.offload.policies.utility import Utility
from tests.offload.policies.support import D, anyone, leave, routing


def utility(**options):
    return Utility(**{"top_k": 2, "num_experts": 8} | options)


def test_the_least_utility_goes_and_of_equal_ones_the_one_used_first():
    # Rows that chose 1: 3 of 4, 2: 1 of 4, 3 and 4: 2 of 4; 4 arrived before 3.
    policy = utility(floor=0.0)
    policy.demand(routing(0, [1, 3], [1, 4], [1, 4], [2, 3]))
    for expert in (1, 2, 4, 3):
        policy.admit(0, expert, D)
    assert [expert for _, expert in leave(policy)] == [2, 4, 3, 1]


def test_old_requests_fade():
    # 1 was asked for in two epochs, then 2 in one. With half of utility lost an epoch: 1 has 0.5 (0.5 + 0.25) / 2 **
    # gap, 2 has 0.5: 1 is worth less from gap 1 on. With a tenth lost, 1 keeps more until gap 7: 0.19 * 0.9 ** 7 < 0.1.
    for smoothing, gap, first in ((0.5, 1, 1), (0.1, 1, 2), (0.1, 6, 2), (0.1, 7, 1)):
        policy = utility(smoothing=smoothing, floor=0.0)
        for _ in range(2):
            policy.begin_epoch()
            policy.demand(routing(0, [1]))
        for _ in range(gap):
            policy.begin_epoch()
        policy.demand(routing(0, [2]))
        for expert in (2, 1):
            policy.admit(0, expert, D)
        assert policy.victim([0], anyone, (0, 9), D) == (0, first), (smoothing, gap)


def test_mass_weighs_what_count_does_not():
    # 1 is chosen twice with little weight, 2 once with much.
    for signal, first in (("count", 2), ("mass", 1)):
        policy = utility(signal=signal, floor=0.0)
        policy.demand(routing(0, [3, 1], [4, 1], [2, 5], weights=[[0.9, 0.1], [0.8, 0.2], [0.7, 0.3]]))
        for expert in (1, 2):
            policy.admit(0, expert, D)
        assert policy.victim([0], anyone, (0, 9), D) == (0, first), signal


def test_weights_count_as_shares_of_their_row():
    policies = [utility(signal="mass", floor=0.0) for _ in range(2)]
    for policy, scale in zip(policies, (1.0, 2.5), strict=True):
        policy.demand(routing(0, [1, 2], weights=[[0.75 * scale, 0.25 * scale]]))
        assert [policy._values[0, e] for e in (1, 2)] == pytest.approx([0.1 * 2 * 0.75, 0.1 * 2 * 0.25])
        policy.demand(routing(1, [1, 2], [1, 2], weights=[[0.75 * scale, 0.25 * scale]] * 2))
        assert [policy._values[1, e] for e in (1, 2)] == pytest.approx([0.1 * 2 * 0.75, 0.1 * 2 * 0.25])


def test_a_choice_counts_as_a_share_of_the_rows():
    # 1 is the choice of two rows of four, then 2 of the only one.
    policy = utility(floor=0.0)
    policy.demand(routing(0, [1], [1], [3], [4]))
    policy.demand(routing(0, [2]))
    assert [policy._values[0, e] for e in (1, 2)] == pytest.approx([0.05, 0.1])


def test_numbers_that_are_not_finite_count_for_nothing():
    policy = utility(signal="mass", floor=0.0)
    policy.demand(routing(0, [1, 2], [3, 2], weights=[[np.nan, np.nan], [0.6, 0.4]]))
    policy.demand(routing(0, [1, 2], weights=[[np.nan, np.nan]]))
    policy.demand(routing(0, [1, 2], weights=[[0.0, 0.0]]))
    # of two rows, in top_k times the share: 0.1 * 2 * 0.6 / 2
    assert policy._values == {(0, 3): pytest.approx(0.06), (0, 2): pytest.approx(0.04)}


def test_the_layer_just_passed_goes_first_unless_it_is_worth_the_floor():
    # Utilities in layer 1: 0.1 for expert 1; in layer 0: none for expert 2. Running layer 1.
    for floor, first in ((0.05, (0, 2)), (0.2, (1, 1))):
        policy = utility(floor=floor)
        for _ in range(50):
            policy.begin_epoch()
        policy.demand(routing(1, [1]))
        policy.admit(0, 2, D)
        policy.admit(1, 1, D)
        policy.begin_layer(1)
        for layers in ((0, 1), tuple(range(6))):
            assert policy.victim(layers, anyone, (2, 9), D) == first, floor
        policy.begin_layer(2)
        assert policy.victim((0, 1, 2), anyone, (2, 9), D) == (0, 2)


def test_utility_goes_on_for_ever():
    policy = utility(smoothing=0.9, floor=0.0)
    for expert in (1, 2):
        policy.admit(0, expert, D)
    for epoch in range(3000):
        policy.begin_epoch()
        policy.demand(routing(0, [1 + epoch % 2]))
        assert policy.victim([0], anyone, (0, 9), D) == (0, 2 - epoch % 2)
