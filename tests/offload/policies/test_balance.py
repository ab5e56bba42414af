"""The threshold against brute force, the bound against all subsets, constants from measurements."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smoe.offload.policies import balance
from smoe.offload.policies.balance import (
    OBJECTIVES,
    Limits,
    LinearSides,
    Split,
    best_split,
    choose_threshold,
    fit_line,
    fit_sides,
    split,
)
from smoe.offload.policies.utility_states import MOST

PUBLISHED = OBJECTIVES[:2]

SIDES = LinearSides(g0=1.0, g1=0.5, tile=2, m0=2.0, m1=0.25)
STATES = st.lists(st.integers(0, MOST), min_size=1, max_size=7)
TIMES = st.integers(0, 12).map(lambda n: n / 4)
"""Quarters add up exactly, whatever the order."""


def test_times_are_those_of_the_formulas():
    # hot: 3 rows are two tiles, 2 one: 1 + 0.5 * 3; cold: (2 + 0.25) + (2 + 1.25)
    assert split(lambda e: e < 2, {0: 3, 1: 2, 2: 1, 3: 5, 4: 0}, SIDES) == Split(2.5, 5.5)
    assert split(lambda e: e < 2, {}, SIDES) == Split(1.0, 0.0)
    assert (Split(2.5, 5.5).makespan_s, Split(2.5, 5.5).difference_s) == (5.5, 3.0)


def test_least_difference_is_not_least_makespan():
    # tau 1: everyone fast, (6, 0); tau 3: the second one slow, (5, 7): closer, but not sooner.
    sides = LinearSides(g0=0.0, g1=1.0, tile=1, m0=0.0, m1=7.0)
    states, counts = [4, 2], {0: 5, 1: 1}
    assert choose_threshold(states, counts, [], sides, Limits(), "difference") == (3, Split(5.0, 7.0))
    assert choose_threshold(states, counts, [], sides, Limits(), "makespan") == (1, Split(6.0, 0.0))


@pytest.mark.parametrize(
    ("limits", "tau"),
    [
        (Limits(), 1),  # everyone in slots is best here
        (Limits(fetch_s=1.0, available_s=2.0), 1),
        (Limits(fetch_s=1.0, available_s=1.0), 3),  # of 2 new ones (states 2 and 4) one can come in time
        (Limits(fetch_s=1.0, available_s=0.0), 5),  # none can: the resident one stays
        (Limits(free=1), 3),
        (Limits(free=0), 5),
        (Limits(free=1, evictable=[0, 3]), 1),  # the one of state 0 goes
        (Limits(free=0, evictable=[2, 3]), 3),  # one of state 2 can go for those of 3 and above
        (Limits(free=0, evictable=[4]), 5),
    ],
)
def test_what_cannot_come_in_is_not_chosen(limits, tau):
    sides = LinearSides(g0=0.0, g1=0.001, tile=1, m0=1.0, m1=0.0)
    assert choose_threshold([2, 4, 5, 0], {0: 1, 1: 1, 2: 1}, [2], sides, limits)[0] == tau


@given(
    states=STATES,
    data=st.data(),
    g=st.tuples(TIMES, TIMES),
    m=st.tuples(TIMES, TIMES),
    tile=st.integers(1, 4),
    objective=st.sampled_from(PUBLISHED),
)
def test_the_threshold_is_what_brute_force_finds(states, data, g, m, tile, objective):
    experts = range(len(states))
    counts = {e: data.draw(st.integers(0, 9)) for e in experts}
    resident = data.draw(st.sets(st.sampled_from(experts)))
    limits = Limits(
        fetch_s=data.draw(TIMES),
        available_s=data.draw(TIMES),
        free=data.draw(st.integers(0, 3)),
        evictable=data.draw(STATES),
    )
    sides = LinearSides(g0=g[0], g1=g[1], tile=tile, m0=m[0], m1=m[1])
    found = []
    for tau in range(1, MOST + 2):
        hot = [e for e in experts if states[e] >= tau]
        new = [e for e in hot if e not in resident]
        slots = limits.free + sum(s < tau for s in limits.evictable)
        if len(new) * limits.fetch_s > limits.available_s or len(new) > slots:
            continue
        fast = g[0] + sum(g[1] * -(-counts[e] // tile) for e in hot)
        slow = sum(m[0] + m[1] * counts[e] for e in experts if e not in hot and counts[e])
        key = (abs(fast - slow), max(fast, slow))
        found.append((key if objective == "difference" else key[::-1], tau, Split(fast, slow)))
    assert choose_threshold(states, counts, resident, sides, limits, objective) == min(found, key=lambda f: f[:2])[1:]


@given(
    counts=st.lists(st.integers(0, 5), max_size=8),
    g=st.tuples(TIMES, TIMES),
    m=st.tuples(TIMES, TIMES),
    tile=st.integers(1, 3),
    objective=st.sampled_from(OBJECTIVES),
)
def test_the_bound_is_the_best_of_all_subsets(counts, g, m, tile, objective):
    sides = LinearSides(g0=g[0], g1=g[1], tile=tile, m0=m[0], m1=m[1])
    everyone = [
        split(lambda e: chosen[e], dict(enumerate(counts)), sides)  # noqa: B023
        for chosen in product((False, True), repeat=len(counts))
    ]
    assert best_split(counts, sides, objective).key(objective) == min(s.key(objective) for s in everyone)


@pytest.mark.parametrize(
    ("limits", "tau", "found"),
    [
        # All of 2, 4 and 5 in slots: 3; expert 2 is there. Slow ones cost 10 each.
        (Limits(), 1, Split(3.0, 0.0)),
        # One can come: expert 1, of the higher state, whatever tau up to 4.
        (Limits(fetch_s=1.0, available_s=1.9), 1, Split(2.0, 10.0)),
        (Limits(free=1), 1, Split(2.0, 10.0)),
        (Limits(free=0), 1, Split(1.0, 20.0)),
        # Only at 3 do those of state 2 elsewhere count as slots.
        (Limits(free=0, evictable=[2, 5]), 3, Split(2.0, 10.0)),
        # The layer's own expert of state 5 goes for nobody of a lower one.
        (Limits(free=0, evictable=[5]), 1, Split(1.0, 20.0)),
    ],
)
def test_what_can_come_in_counts_though_not_all_can(limits, tau, found):
    sides = LinearSides(g0=0.0, g1=1.0, tile=1, m0=10.0, m1=0.0)
    assert choose_threshold([2, 4, 5, 0], {0: 1, 1: 1, 2: 1}, [2], sides, limits, "reachable") == (tau, found)


def test_who_goes_for_another_is_not_in_its_slot_any_more():
    sides = LinearSides(g0=0.0, g1=1.0, tile=1, m0=10.0, m1=0.5)
    # Expert 0, used by 4 rows, would have to go for 1, used by one: not at tau 1, nor above.
    limits = Limits(free=0, evictable=[1])
    assert choose_threshold([1, 3], {0: 4, 1: 1}, [0], sides, limits, "reachable") == (1, Split(4.0, 10.5))
    # The other way round it pays.
    assert choose_threshold([1, 3], {0: 1, 1: 4}, [0], sides, limits, "reachable") == (2, Split(4.0, 10.5))


@given(
    states=STATES,
    data=st.data(),
    free=st.integers(0, 3),
    evictable=STATES,
    times=st.tuples(TIMES, TIMES),
)
def test_at_the_chosen_threshold_slots_suffice(states, data, free, evictable, times):
    limits = Limits(fetch_s=times[0], available_s=times[1], free=free, evictable=evictable)
    for tau in range(1, MOST + 2):
        wanted = data.draw(st.integers(0, 6))
        come, floor = limits.room(wanted, tau)
        assert come <= wanted
        assert come * limits.fetch_s <= limits.available_s
        assert floor <= tau
        assert come <= free + sum(state < floor for state in evictable)
        if come:
            assert limits.allow(come, tau)
        if come < wanted:
            assert not limits.allow(come + 1, tau)


def test_many_experts_are_divided_greedily(monkeypatch):
    counts = [1] * 9 + [2] * 7 + [4] * 5 + [8] * 3
    sides = LinearSides(g0=0.1, g1=0.2, tile=4, m0=0.3, m1=0.1)
    exact = best_split(counts, sides)
    monkeypatch.setattr(balance, "MOST_SUBSETS", 1)
    greedy = best_split(counts, sides)
    assert exact.makespan_s <= greedy.makespan_s <= 1.1 * exact.makespan_s
    # Only the worst of the gains is known to be off: no better than everybody on one side.
    assert greedy.makespan_s < min(sides.fast_s(counts), sides.slow_s(counts))


@given(states=STATES, counts=st.lists(st.integers(0, 9), min_size=7, max_size=7), objective=st.sampled_from(OBJECTIVES))
def test_no_threshold_beats_the_bound(states, counts, objective):
    of = dict(enumerate(counts[: len(states)]))
    found = choose_threshold(states, of, [], SIDES, Limits(), objective)[1]
    assert best_split(of.values(), SIDES, objective).key(objective) <= found.key(objective)


def test_constants_are_found_again_and_never_negative():
    assert fit_line([(x, 0.5 + 0.25 * x) for x in (1, 2, 5, 9)]) == pytest.approx((0.5, 0.25))
    assert fit_line([(1, 1.0), (2, 3.0)]) == pytest.approx((0.0, 1.4))  # through the origin: (1 + 6) / (1 + 4)
    assert fit_line([(1, 3.0), (2, 1.0)]) == (2.0, 0.0)
    assert fit_line([(4, 2.0), (4, 4.0)]) == (3.0, 0.0)
    rows = (1, 2, 3, 4, 8)
    fast = [(r, SIDES.fast_s([r] * 6)) for r in rows]
    slow = [(r, SIDES.slow_s([r])) for r in rows]
    found = fit_sides(fast, slow, tile=2, experts=6)
    assert [found.g0, found.g1, found.m0, found.m1] == pytest.approx([1.0, 0.5, 2.0, 0.25])
    assert found.tile == 2


def test_measurements_with_noise_give_about_the_constants():
    rng = np.random.default_rng(3)
    samples = [(r, 1e-3 + 2e-4 * r + rng.normal(0, 1e-5)) for r in range(1, 17) for _ in range(8)]
    assert fit_line(samples) == pytest.approx((1e-3, 2e-4), rel=0.05)
