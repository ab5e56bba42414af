"""One score for what goes and what comes: frozen, fallen, restored, refused."""

from hypothesis import given, settings
from hypothesis import strategies as st

from smoe.offload.costs import FixedCosts
from smoe.offload.policies.levels import LevelQueue, Telling, UtilityLevels, UtilityPrefetch
from smoe.offload.policies.spec import Geometry, parse_policies
from smoe.offload.policies.utility_states import MOST, Fixed, States
from smoe.offload.policies.waiting import Compute
from tests.offload.policies.support import A, D, P, anyone, leave, routing

LAYERS = (0, 1, 2)


class Levels:
    """A policy whose states a test sets, served or not."""

    def __init__(self, served=True, num_experts=6, **options):
        self.states = States(LAYERS, num_experts, Fixed())
        self.policy = UtilityLevels(self.states, LAYERS, **options)
        self.prefetch = UtilityPrefetch(self.policy) if served else None

    def set(self, layer, *values):
        self.states._states[layer][: len(values)] = values

    def run(self, layer, states, used=()):
        """A pass after which the layer's states are `states`; what it uses holds a slot."""
        self.policy.begin_layer(layer)
        self.policy.demand(routing(layer, [5]))
        self.policy._counts = {}
        self.set(layer, *states)
        self.policy.touch(layer, list(used))

    def scores(self, layer):
        return {expert: self.policy.score(layer, expert) for expert in sorted(self.policy._held[layer])}

    def plan(self):
        return self.prefetch.plan(routing(0, [0]), 1, None)


def test_a_layer_freezes_falls_and_gets_its_scores_back():
    levels = Levels()
    policy = levels.policy
    for expert in (0, 1, 2):
        policy.admit(0, expert, A)
    assert levels.scores(0) == {0: 0, 1: 0, 2: 0}
    levels.run(0, [3, 0, 5, 2])
    assert levels.scores(0) == dict.fromkeys((0, 1, 2), MOST + 1)
    assert levels.plan() == []
    levels.run(1, [])
    assert levels.scores(0) == {0: 0, 1: 0, 2: 0}
    assert list(policy.queue) == [(0, 2), (0, 0), (0, 3)]
    # 2 and 0 hold slots and are served for nothing; 3 holds none.
    assert levels.plan() == [(0, 3)]
    assert levels.scores(0) == {0: 3, 1: 0, 2: 5}
    assert list(policy.queue) == [(0, 3)]
    policy.admit(0, 3, P)
    assert levels.scores(0) == {0: 3, 1: 0, 2: 5, 3: 2}
    assert len(policy.queue) == 0


def test_the_layer_about_to_run_takes_its_requests_back():
    levels = Levels()
    levels.run(0, [1, 2])
    levels.run(1, [4])
    levels.run(2, [])
    assert list(levels.policy.queue) == [(1, 0), (0, 1), (0, 0)]
    levels.policy.begin_epoch()
    levels.run(0, [1, 2])
    assert list(levels.policy.queue) == [(1, 0)]
    assert levels.plan() == [(1, 0)]


def test_the_highest_level_is_served_first_and_in_each_who_came_first():
    levels = Levels()
    levels.run(1, [2, 5, 1])
    levels.run(0, [5, 0, 2])
    levels.run(2, [])
    assert levels.plan() == [(1, 1), (0, 0), (1, 0), (0, 2), (1, 2)]


def test_nobody_below_tau_is_asked_for():
    levels = Levels(tau=3)
    levels.run(0, [2, 3, 5])
    levels.run(1, [])
    assert levels.plan() == [(0, 2), (0, 1)]


def test_who_is_worth_tau_is_spared_and_the_request_waits():
    levels = Levels(tau=2)
    policy = levels.policy
    for key in ((0, 0), (0, 1), (1, 0)):
        policy.admit(*key, A)
    levels.run(0, [4, 1])  # holds 0 and 1
    levels.run(1, [3, 5, 2])  # holds 0
    levels.run(2, [])
    # Served in order: (1, 1) has no slot; behind it (0, 0) and (1, 0) hold theirs, (1, 2) has none.
    assert levels.plan() == [(1, 1), (1, 2)]
    assert policy.victim(LAYERS, anyone, (1, 1), P) == (0, 1), "utility 1, while (0, 0) has not been served"
    policy.forget(0, 1)
    policy.admit(1, 1, P)
    assert levels.scores(0) == {0: 4}
    assert levels.scores(1) == {0: 3, 1: 5}
    assert policy.victim(LAYERS, anyone, (1, 2), P) is None, "everybody is worth 2"
    assert levels.plan() == [(1, 2)]
    assert policy.victim(LAYERS, anyone, (1, 2), D) == (1, 0), "a pass that waits takes the lowest"
    assert policy.victim(LAYERS, anyone, (2, 2), P) == (1, 0), "another's plan too"


def test_a_refusal_in_one_pool_does_not_stop_the_others():
    levels = Levels()
    policy = levels.policy
    policy.admit(0, 0, A)
    policy.admit(1, 0, A)
    levels.run(0, [3, 5])
    levels.run(1, [2])
    levels.run(2, [])
    # Highest first: (0, 1) without a slot, (0, 0), (1, 0).
    assert levels.plan() == [(0, 1)]
    assert policy.victim((1,), lambda *key: False, (0, 1), P) is None
    assert (policy.score(0, 0), policy.score(1, 0)) == (3, 2)
    assert levels.plan() == [(0, 1)], "asked for again"


def test_free_slots_are_filled_with_what_was_used_and_full_ones_are_not():
    levels = Levels(tau=2)
    policy = levels.policy

    def run(layer, *used):
        policy.begin_layer(layer)
        policy.demand(routing(layer, used))
        return levels.plan()

    run(0, 3, 1)
    assert run(1, 4) == [(0, 1), (0, 3)]
    policy.admit(0, 1, P)
    assert policy.score(0, 1) == 0, "in a slot, though of no utility"
    assert policy.victim(LAYERS, anyone, (0, 3), P) is None, "no slot is free: a cold one moves nobody"
    assert run(2) == [(0, 3), (1, 4)], "as long as it is not too late"
    run(0, 2)
    assert run(1, 4) == [], "neither (0, 2), whose layer has found all slots taken, nor (1, 4), which runs"


def test_a_slot_taken_meanwhile_is_asked_for_again():
    levels = Levels()
    levels.policy.admit(0, 0, A)
    levels.run(0, [4])
    levels.run(1, [])
    levels.policy.forget(0, 0)
    assert levels.plan() == [(0, 0)]


def test_the_running_layer_goes_last_and_of_equals_the_least_useful_then_the_oldest():
    levels = Levels(served=False)
    policy = levels.policy
    for key in ((2, 0), (1, 0), (1, 1), (0, 0), (0, 1), (0, 2)):
        policy.admit(*key, D)
    levels.run(0, [0, 4, 4], used=[1])
    levels.run(1, [3, 2])
    assert leave(policy, LAYERS) == [(2, 0), (0, 0), (0, 2), (0, 1), (1, 0), (1, 1)]


def test_without_service_scores_come_back_at_once():
    levels = Levels(served=False)
    for expert in (0, 1):
        levels.policy.admit(0, expert, A)
    levels.run(0, [2, 4])
    levels.run(1, [])
    assert levels.scores(0) == {0: 2, 1: 4}
    assert len(levels.policy.queue) == 0


def test_a_better_informed_plan_counts_most_until_its_layer_has_run():
    levels = Levels()
    policy = levels.policy
    for key in ((0, 0), (1, 3)):
        policy.admit(*key, A)
    policy.admit(1, 4, P)  # nobody queued it
    policy.confirm(1, [3])
    assert levels.scores(1) == {3: MOST, 4: MOST}
    assert policy.victim(LAYERS, anyone, (2, 0), D) == (0, 0)
    levels.run(1, [0, 0, 0, 1, 0])
    levels.run(2, [])
    levels.plan()
    assert levels.scores(1) == {3: 1, 4: 0}


def test_the_threshold_is_chosen_when_a_layer_has_run_by_what_was_heard():
    geometry = Geometry(layers=LAYERS, num_experts=6, top_k=2)
    built = parse_policies("evict=utility:inertial:makespan,prefetch=utility,miss=cpu").build(geometry)
    policy, miss = built.eviction, built.miss
    assert isinstance(policy, UtilityLevels)
    assert isinstance(miss, Telling)
    assert isinstance(miss._miss, Compute)
    assert built.admission is None, "what is prefetched needs no second way in"
    policy.states._states[0][:3] = [5, 3, 1]

    def run(layer, *rows):
        policy.begin_layer(layer)
        seen = routing(layer, *rows)
        policy.demand(seen)
        miss.decide(seen, frozenset(), frozenset(), FixedCosts(fetch_s=1.0, row_s=1.0, slot_row_s=1.0))

    # Before anything was heard: tau 1. Then 0 in two rows, 1 and 3 in one. States stay 5 -> 4, 3 -> 2, 1 -> 0, 0.
    run(0, [0, 1], [0, 3])
    assert policy.tau(0) == 1
    run(1, [0, 1])
    assert policy.states.of(0).tolist() == [4, 2, 0, 0, 0, 0]
    # tau 3 makes 0 alone hot: 2 s on either side.
    assert policy.tau(0) == 3
    assert (policy.balanced[0].fast_s, policy.balanced[0].slow_s) == (2, 2)
    assert list(policy.queue) == [(0, 0), (0, 1), (0, 3)], "the hot one, then what may fill free slots"


def test_slots_limit_the_threshold():
    levels = Levels(objective="makespan")
    policy = levels.policy
    policy.heard(FixedCosts(fetch_s=0.0, row_s=1.0, slot_row_s=0.0))
    for expert in (0, 1):
        policy.admit(0, expert, A)
    assert policy.victim((0,), anyone, (0, 2), A) == (0, 0), "no free slot: two are all of the layer"
    # Everyone in slots would be best, but of the three hot at tau 1 two more than can go are new.
    levels.run(0, [0, 4, 2, 2])
    policy.demand(routing(0, [1, 2], [2, 3]))
    levels.set(0, 0, 4, 2, 2)
    levels.run(1, [])
    assert policy.tau(0) == 3, "only (0, 0) can go, for one of utility 2, and there are two"
    levels.run(0, [0, 4, 2, 1])
    policy.demand(routing(0, [1, 2], [2, 3]))
    levels.set(0, 0, 4, 2, 1)
    levels.run(1, [])
    assert policy.tau(0) == 2


KEYS = st.tuples(st.sampled_from(LAYERS), st.integers(0, 3))
STEP = st.one_of(
    st.tuples(st.just("push"), KEYS, st.integers(1, MOST)),
    st.tuples(st.just("remove"), KEYS, st.just(0)),
    st.tuples(st.just("drop"), KEYS, st.just(0)),
)


@given(st.lists(STEP, max_size=80))
def test_the_queue_is_by_level_then_by_arrival(steps):
    queue, expected = LevelQueue(), []
    for clock, (step, key, level) in enumerate(steps):
        here = any(key == k for _, _, k in expected)
        assert (key in queue) == here
        if step == "push" and not here:
            queue.push(key, level)
            expected.append((-level, clock, key))
        elif step == "remove" and here:
            queue.remove(key)
            expected = [entry for entry in expected if entry[2] != key]
        elif step == "drop":
            queue.drop(key[0])
            expected = [entry for entry in expected if entry[2][0] != key[0]]
        assert list(queue) == [key for *_, key in sorted(expected)]
        assert len(queue) == len(expected)


@given(st.data(), st.integers(1, 3), st.booleans(), st.integers(1, 8))
@settings(max_examples=60)
def test_whatever_runs_scores_and_queue_fit_together(data, tau, served, slots):
    """Passes over layers in turn with plans carried out as far as slots go."""
    levels = Levels(served, num_experts=4, tau=tau)
    policy, held, counted = levels.policy, set(), {}
    for _ in range(data.draw(st.integers(1, 5))):
        policy.begin_epoch()
        for layer in LAYERS:
            rows = data.draw(st.lists(st.sets(st.integers(0, 3), min_size=2, max_size=2).map(sorted), min_size=1))
            policy.begin_layer(layer)
            policy.demand(routing(layer, *rows))
            assert all(key[0] != layer for key in policy.queue)
            assert set(levels.scores(layer).values()) <= {MOST + 1}
            used = sorted({expert for row in rows for expert in row if (layer, expert) in held})
            policy.touch(layer, used)
            pinned = {(layer, expert) for expert in used}
            asked = {(layer, expert) for row in rows for expert in row}
            counted[layer] = asked
            reason = P if served else D
            for key in levels.plan() if served else sorted(asked - held):
                assert key not in held
                assert not served or levels.states.of(key[0])[key[1]] >= tau or key in counted[key[0]]
                if len(held) >= slots:
                    victim = policy.victim(LAYERS, lambda *k: k not in pinned, key, reason)  # noqa: B023
                    if victim is None:
                        assert served or held <= pinned
                        continue
                    assert not served or (victim[0] != layer and policy.score(*victim) < tau)
                    held.remove(victim)
                    policy.forget(*victim)
                held.add(key)
                policy.admit(*key, reason)
                pinned.add(key)
            assert set(policy._scores) == held == {(at, e) for at, some in policy._held.items() for e in some}
            for at, expert in held:
                assert policy.score(at, expert) in {0, MOST + 1, MOST, int(levels.states.of(at)[expert])}
            assert served or not len(policy.queue)
