from smoe.offload.policies.frequency import LFRU, LFU, Frequency
from tests.offload.policies.support import D, P, leave, routing


def experts(policy):
    return [expert for _, expert in leave(policy)]


def test_lfu_evicts_the_least_used_and_of_equal_ones_the_one_used_first():
    # 1 twice more, 2 once more, 3 never used again: 3, 2, 1 uses.
    policy = LFU()
    for expert in (1, 2, 3):
        policy.admit(0, expert, D)
    policy.touch(0, [1, 2])
    policy.touch(0, [1])
    assert experts(policy) == [3, 2, 1]
    # Uses equal: the order of last use decides, not the number of the expert.
    policy = LFU()
    for expert in (1, 2, 3):
        policy.admit(0, expert, D)
    policy.touch(0, [3, 1, 2])
    assert experts(policy) == [3, 1, 2]


def test_a_prefetch_is_a_use_or_is_not():
    # 1 demanded, 2 prefetched, 2 confirmed: uses 1 and 2, or 1 and 0.
    for touch, order in ((True, [1, 2]), (False, [2, 1])):
        policy = LFU(prefetch_touch=touch)
        policy.admit(0, 1, D)
        policy.admit(0, 2, P)
        policy.confirm(0, [2])
        assert experts(policy) == order, touch


def test_lfu_forgets_what_it_evicts():
    policy = LFU()
    for expert in (1, 2):
        policy.admit(0, expert, D)
    for _ in range(3):
        policy.touch(0, [1])
    policy.forget(0, 1)
    policy.admit(0, 1, D)
    policy.touch(0, [2])
    assert experts(policy) == [1, 2]


def test_lfru_spares_the_recent_half():
    # Uses 1: 3, 2: 3, 3: 1, 4: 1, from the least recent to the most. LFU takes 3 and 4 first. For LFRU the recent half
    # is {3, 4}: of 1 and 2, used equally often, 1 goes for the newcomer n. Then {4, n} are recent: 3 goes, of {2, 3}.
    # Then only newcomers are recent: 4 goes, of {2, 4}.
    for cls, order in ((LFU, [3, 4, 1, 2]), (LFRU, [1, 3, 4, 2])):
        policy = cls()
        for expert in (1, 2):
            policy.admit(0, expert, D)
        policy.touch(0, [1, 2])
        policy.touch(0, [1, 2])
        for expert in (3, 4):
            policy.admit(0, expert, D)
        assert experts_readmitting(policy) == order, cls


def experts_readmitting(policy):
    """The order in which four experts go while the cache is kept full by newcomers of another layer."""
    gone = []
    while len(gone) < 4:
        victim = policy.victim([0], lambda *key: True, (1, 0), D)
        policy.forget(*victim)
        policy.admit(1, len(gone), D)
        gone.append(victim[1])
    return gone


def test_lfru_spares_what_is_used_again():
    # 1 has the fewest uses, but was used last: recent are 4 and 1. Of 2 and 3, used equally often, 2 goes.
    policy = LFRU()
    for expert in (1, 2, 3, 4):
        policy.admit(0, expert, D)
    for _ in range(2):
        policy.touch(0, [2, 3, 4])
    policy.touch(0, [1])
    assert policy.victim([0], lambda *key: True, (0, 9), D) == (0, 2)


def test_lfru_takes_the_least_recent_when_only_recent_ones_can_go():
    policy = LFRU(recent=1.0)
    for expert in (1, 2, 3):
        policy.admit(0, expert, D)
    policy.touch(0, [1])
    assert experts(policy) == [2, 3, 1]


def test_frequency_counts_requests_across_evictions_and_of_all_rows():
    # Requests 1: 3 (before it ever had a slot), 2: 1, 3: 2 rows. LFU would see 1 use of each.
    policy = Frequency()
    for rows in ([[1, 5]], [[1, 5]], [[1, 2]], [[3, 6], [3, 7]]):
        policy.demand(routing(0, *rows))
    for expert in (1, 2, 3):
        policy.admit(0, expert, D)
    assert experts(policy) == [2, 3, 1]


def test_frequency_counts_each_layer_for_itself():
    policy = Frequency()
    policy.demand(routing(0, [1, 2]))
    policy.demand(routing(1, [1, 3]))
    policy.demand(routing(1, [1, 3]))
    for layer in (1, 0):
        policy.admit(layer, 1, D)
    assert leave(policy, (0, 1)) == [(0, 1), (1, 1)]


def test_of_equal_requests_the_one_asked_for_first_goes():
    policy = Frequency()
    for expert in (1, 2, 3):
        policy.admit(0, expert, D)
    policy.demand(routing(0, [3, 1]))
    policy.demand(routing(0, [2, 7]))
    assert experts(policy) == [3, 1, 2]


def halved(periods_between):
    # 1 is requested four times, then `periods_between` halvings later 2 is requested once: 4 / 2 ** n against 1.
    policy = Frequency(halve_epochs=10)
    for _ in range(4):
        policy.begin_epoch()
        policy.demand(routing(0, [1]))
    for _ in range(10 * periods_between):
        policy.begin_epoch()
    policy.demand(routing(0, [2]))
    for expert in (1, 2):
        policy.admit(0, expert, D)
    return experts(policy)


def test_requests_are_halved_every_period():
    assert halved(1) == [2, 1]  # 2 against 1
    assert halved(2) == [1, 2]  # 1 against 1: the order of arrival
    assert halved(3) == [1, 2]  # 0.5 against 1


def test_halving_goes_on_for_ever():
    policy = Frequency(halve_epochs=1)
    for expert in (1, 2):
        policy.admit(0, expert, D)
    for epoch in range(5000):
        policy.begin_epoch()
        policy.demand(routing(0, [1 + epoch % 2]))
        assert policy.victim([0], lambda *key: True, (0, 9), D) == (0, 2 - epoch % 2) or epoch == 0
