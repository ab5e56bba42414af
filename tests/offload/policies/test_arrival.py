from collections import Counter

from smoe.offload.policies.arrival import FIFO, RandomChoice
from tests.offload.policies.support import D, anyone, leave


def test_fifo_does_not_look_at_uses():
    # Arrived 3, 1, 2 and 3 used last: LRU would begin with 1.
    policy = FIFO()
    for expert in (3, 1, 2):
        policy.admit(0, expert, D)
    policy.touch(0, [3])
    policy.confirm(0, [3])
    assert leave(policy) == [(0, 3), (0, 1), (0, 2)]


def test_fifo_begins_again_for_what_returns():
    policy = FIFO()
    for expert in (3, 1):
        policy.admit(0, expert, D)
    policy.forget(0, 3)
    policy.admit(0, 3, D)
    assert leave(policy) == [(0, 1), (0, 3)]


def held(seed, layers=6, experts=4):
    policy = RandomChoice(seed)
    for layer in range(layers):
        for expert in range(experts):
            policy.admit(layer, expert, D)
    return policy


def test_equal_seeds_choose_equally_and_others_do_not():
    layers = tuple(range(6))
    assert leave(held(1), layers) == leave(held(1), layers) != leave(held(2), layers)


def test_every_one_has_an_equal_chance():
    policy = held(0)
    for layers in ((2,), (0, 1), tuple(range(6))):
        counts = Counter(policy.victim(layers, anyone, (0, 9), D) for _ in range(24_000))
        share = 24_000 / (4 * len(layers))
        assert set(counts) == {(layer, expert) for layer in layers for expert in range(4)}
        # six standard deviations of a binomial count
        assert all(abs(count - share) < 6 * share**0.5 for count in counts.values())


def test_the_only_evictable_one_is_found():
    policy = held(0, layers=6, experts=64)
    assert policy.victim(range(6), lambda *key: key == (3, 17), (0, 99), D) == (3, 17)
    assert policy.victim(range(6), lambda *key: False, (0, 99), D) is None
