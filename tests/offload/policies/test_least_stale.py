import pytest

from smoe.offload.policies.least_stale import LeastStaleByLayer, LeastStaleFIFO
from smoe.offload.policies.lru import LRU
from tests.offload.policies.support import D, P, anyone, leave

LAYERS = tuple(range(6))
"""More than FEW_LAYERS: the order over all layers decides."""


def make(variant):
    return LeastStaleFIFO() if variant == "fifo" else LeastStaleByLayer(LAYERS, variant)


def run(variant):
    """Epoch 1 brings, in this order, one expert each of layers 2, 5, 0, 3, 1, 4. Epoch 2 is at layer 3: it has used
    that of layer 1 and prefetched a second one, 9, for layer 4; all others are stale."""
    policy = make(variant)
    policy.begin_epoch()
    for layer in (2, 5, 0, 3, 1, 4):
        policy.admit(layer, 1, D)
    policy.begin_epoch()
    policy.begin_layer(1)
    policy.touch(1, [1])
    policy.begin_layer(3)
    policy.admit(4, 9, P)
    return policy


@pytest.mark.parametrize(
    ("variant", "order"),
    [
        ("fifo", [2, 5, 0, 3, 4, 1, "4p"]),  # stale in order of arrival; then current in order of arrival
        ("layer", [0, 2, 3, 4, 5, 1, "4p"]),
        # distances (layer - 4) mod 6: layer 3: 5, 2: 4, 1: 3, 0: 2, 5: 1, 4: 0
        ("cyclic", [3, 2, 0, 5, 4, 1, "4p"]),
        # passed 0, 1, 2, 3 by |layer - 3|: 0, 2, 3; ahead 4, 5: 5, 4; then current: 1 has passed, 4's is ahead
        ("four-tier", [0, 2, 3, 5, 4, 1, "4p"]),
    ],
)
def test_stale_go_before_current_and_each_variant_has_its_order(variant, order):
    gone = leave(run(variant), LAYERS)
    assert [layer if expert == 1 else f"{layer}p" for layer, expert in gone] == order


@pytest.mark.parametrize("variant", ["fifo", "layer", "cyclic", "four-tier"])
def test_a_pool_of_one_layer(variant):
    # Layer 0 holds 1, 2, 3; this epoch uses 1 and confirms 3: 2 is the only stale one.
    policy = make(variant)
    for expert in (1, 2, 3):
        policy.admit(0, expert, D)
    policy.admit(5, 7, D)
    policy.begin_epoch()
    policy.begin_layer(0)
    policy.touch(0, [1])
    policy.confirm(0, [3])
    assert leave(policy, (0,)) == [(0, 2), (0, 1), (0, 3)]
    assert leave(policy, (5,)) == [(5, 7)]


def test_inside_a_layer_the_one_made_current_longest_ago_goes_and_with_fifo_the_first_to_arrive():
    for variant, order in (("cyclic", [2, 3, 1]), ("fifo", [1, 2, 3])):
        policy = make(variant)
        for expert in (1, 2, 3):
            policy.admit(0, expert, D)
        policy.begin_epoch()
        policy.touch(0, [1])
        policy.begin_epoch()
        assert [expert for _, expert in leave(policy)] == order, variant


@pytest.mark.parametrize("variant", ["fifo", "layer", "cyclic", "four-tier"])
def test_a_stale_expert_that_cannot_go_now_may_go_later(variant):
    policy = make(variant)
    for layer in LAYERS:
        policy.admit(layer, 1, D)
    policy.begin_epoch()
    policy.begin_layer(2)
    first = policy.victim(LAYERS, anyone, (2, 5), D)
    second = policy.victim(LAYERS, lambda *key: key != first, (2, 5), D)
    assert second != first
    policy.forget(*second)
    assert policy.victim(LAYERS, anyone, (2, 5), D) == first
    assert policy.victim([second[0]], anyone, (2, 5), D) is None
    assert policy.victim([], anyone, (2, 5), D) is None


@pytest.mark.parametrize("variant", ["fifo", "layer", "cyclic", "four-tier"])
def test_what_returns_in_the_same_epoch_is_current(variant):
    policy = make(variant)
    for expert in (1, 2):
        policy.admit(0, expert, D)
    policy.begin_epoch()
    policy.begin_layer(0)
    assert policy.victim([0], anyone, (0, 3), D) == (0, 1)
    policy.forget(0, 1)
    policy.admit(0, 1, P)
    assert leave(policy) == [(0, 2), (0, 1)]


def test_the_current_layer_among_decoder_layers_that_are_not_all_moe():
    # MoE layers 1, 3, 5; running 3: cyclic distances 2 for 3 itself, 1 for 1, 0 for 5.
    policy = LeastStaleByLayer((1, 3, 5), "cyclic")
    for layer in (5, 3, 1):
        policy.admit(layer, 0, D)
    policy.begin_epoch()
    policy.begin_layer(3)
    assert leave(policy, (1, 3, 5)) == [(3, 0), (1, 0), (5, 0)]


def test_lru_would_choose_otherwise():
    # The prefetch of this epoch was confirmed, then the stale one used in the last epoch: LRU takes the prefetch if
    # that is no use, least-stale does not.
    lru, stale = LRU(prefetch_touch=False), make("fifo")
    for policy in (lru, stale):
        policy.admit(0, 1, D)
        policy.begin_epoch()
        policy.admit(1, 2, P)
    assert lru.victim([0, 1], anyone, (0, 3), D) == (1, 2)
    assert stale.victim([0, 1], anyone, (0, 3), D) == (0, 1)


def test_what_was_current_is_stale_again_in_the_next_epoch():
    policy = make("fifo")
    for expert in (1, 2, 3):
        policy.admit(0, expert, D)
    for used, first in (((1, 2), 3), ((1,), 2), ((), 1)):
        policy.begin_epoch()
        policy.touch(0, used)
        assert policy.victim([0], anyone, (0, 9), D) == (0, first)


def test_those_that_could_not_go_keep_their_order():
    for layers in ([0], LAYERS):
        policy = make("fifo")
        for expert in (1, 2, 3):
            policy.admit(0, expert, D)
        policy.begin_epoch()
        assert policy.victim(layers, lambda layer, expert: expert == 3, (0, 9), D) == (0, 3)
        assert policy.victim(layers, anyone, (0, 9), D) == (0, 1)


def test_using_again_in_the_same_epoch_makes_young():
    policy = make("cyclic")
    for expert in (1, 2):
        policy.admit(0, expert, P)
    policy.touch(0, [1])
    assert leave(policy) == [(0, 2), (0, 1)]
