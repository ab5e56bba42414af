from functools import cache as memo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from smoe.offload.policies.arrival import FIFO, RandomChoice
from smoe.offload.policies.belady import Belady
from smoe.offload.policies.frequency import LFRU, LFU, Frequency
from smoe.offload.policies.future import NEVER, Future
from smoe.offload.policies.least_stale import LeastStaleByLayer, LeastStaleFIFO
from smoe.offload.policies.lru import LRU
from smoe.offload.policies.utility import Utility
from tests.offload.policies.support import Cache, D, P, anyone

PASSES = [(0, [1, 2]), (1, [3]), (0, [2, 1]), (1, [4]), (0, [1])]


def test_a_future_knows_each_next_use():
    future = Future.of(PASSES)
    assert [future.experts_of(p) for p in range(6)] == [[1, 2], [3], [1, 2], [4], [1], []]
    assert [future.next_uses_of(p) for p in range(5)] == [[2, 2], [NEVER], [4, NEVER], [NEVER], [NEVER]]
    assert future.first_uses == {(0, 1): 0, (0, 2): 0, (1, 3): 1, (1, 4): 3}
    assert len(Future.of([])) == 0


def test_the_farthest_next_use_goes():
    # In pass 0 layer 1's 3 is used in pass 1 and its 4 in pass 3; then, in pass 1, 3 is used no more.
    policy = Belady(Future.of(PASSES))
    policy.begin_layer(0)
    for expert in (3, 4):
        policy.admit(1, expert, P)
    assert policy.victim([1], anyone, (0, 1), D) == (1, 4)
    policy.begin_layer(1)
    assert policy.victim([1], anyone, (0, 1), D) == (1, 3)


def test_without_forced_admission_a_slot_is_refused_to_what_comes_later():
    free, forced = (Belady(Future.of(PASSES), forced=forced) for forced in (False, True))
    for policy in (free, forced):
        policy.begin_layer(0)
        policy.admit(1, 3, P)  # used in pass 1
    # Of layer 0, 1 comes in pass 2; of layer 1, 4 in pass 3; what never comes, never.
    for wanted in ((0, 1), (1, 4), (1, 7)):
        assert free.victim([1], anyone, wanted, D) is None
        assert forced.victim([1], anyone, wanted, D) == (1, 3)
    for policy in (free, forced):
        policy.begin_layer(1)
    assert free.victim([1], anyone, (1, 4), D) == (1, 3)
    # Neither comes again: the slot stays as it is.
    assert free.victim([1], anyone, (1, 7), D) is None


def test_a_run_that_is_not_the_one_foreseen_is_an_error():
    policy = Belady(Future.of(PASSES))
    policy.begin_layer(0)
    with pytest.raises(RuntimeError, match="pass 1 is layer 0, foreseen was layer 1"):
        policy.begin_layer(0)
    policy = Belady(Future.of([]))
    with pytest.raises(RuntimeError, match="foreseen was the end"):
        policy.begin_layer(0)


def fewest_misses(passes, size, forced):
    """By trying every choice."""
    steps = [(layer, expert) for layer, (expert,) in passes]

    @memo
    def rest(at, held):
        if at == len(steps):
            return 0
        key = steps[at]
        if key in held:
            return rest(at + 1, held)
        if len(held) < size:
            return 1 + rest(at + 1, held | {key})
        ways = [rest(at + 1, held - {victim} | {key}) for victim in held]
        if not forced:
            ways.append(rest(at + 1, held))
        return 1 + min(ways)

    return rest(0, frozenset())


def misses(policy, passes, size):
    cache = Cache(policy, size, range(6))
    for number, (layer, experts) in enumerate(passes):
        if number % 3 == 0:
            cache.epoch()
        cache.demand(layer, experts)
    return cache.misses


ONE_EACH = st.lists(st.tuples(st.integers(0, 1), st.lists(st.integers(0, 2), min_size=1, max_size=1)), max_size=14)


@given(ONE_EACH, st.integers(1, 4))
@example([(0, [0]), (0, [1]), (0, [2]), (0, [0]), (0, [1])], 2)
def test_no_choice_of_victims_has_fewer_misses(passes, size):
    future = Future.of(passes)
    for forced in (True, False):
        assert misses(Belady(future, forced=forced), passes, size) == fewest_misses(passes, size, forced)


WIDE = st.lists(
    st.tuples(st.integers(0, 5), st.lists(st.integers(0, 5), min_size=1, max_size=3, unique=True)), max_size=40
)


@given(WIDE, st.integers(3, 20), st.integers(0, 2**32))
def test_every_policy_keeps_its_sets_and_none_beats_the_oracle(passes, size, seed):
    layers = tuple(range(6))
    others = [
        RandomChoice(seed),
        FIFO(),
        LRU(),
        LRU(prefetch_touch=False),
        LFU(),
        LFRU(),
        LFRU(recent=0.0),
        LFRU(recent=1.0),
        Frequency(halve_epochs=2),
        LeastStaleFIFO(),
        *(LeastStaleByLayer(layers, order) for order in ("layer", "cyclic", "four-tier")),
        Utility(top_k=2, num_experts=6),
        Utility(top_k=2, num_experts=6, floor=1.0),
    ]
    bound = misses(Belady(Future.of(passes)), passes, size)
    assert misses(Belady(Future.of(passes), forced=False), passes, size) <= bound
    assert all(misses(policy, passes, size) >= bound for policy in others)
