"""Transitions by hand: up, down, hold; the limits; one step a window; boundaries that follow the workload."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smoe.offload.policies.utility_states import B_DOWN, B_UP, MOST, Calibrated, Fixed, States


class Told:
    """Boundaries that are what a test says."""

    def __init__(self, up, down):
        self.both = up, down

    def of(self, layer):
        return self.both

    def observe(self, layer, surprises):
        pass


def states_at(values, boundaries, layer=0):
    """States that have come to `values`, with these boundaries from then on."""
    told = Told(1, 1)
    states = States([layer], len(values), told)
    for level in range(1, MOST + 1):
        states.move(layer, {e: 9 if value >= level else value for e, value in enumerate(values)})
    assert states.of(layer).tolist() == list(values)
    states._boundaries, states.moves = boundaries, 0
    return states


@pytest.mark.parametrize(
    ("state", "count", "then"),
    [
        # from s: up at s + 5 and above, down at s - 1 and below, dead band s .. s + 4
        (0, 0, 0),
        (0, 4, 0),
        (0, 5, 1),
        (0, 9, 1),
        (1, 0, 0),
        (1, 1, 1),
        (1, 5, 1),
        (1, 6, 2),
        (3, 0, 2),
        (3, 2, 2),
        (3, 3, 3),
        (3, 7, 3),
        (3, 8, 4),
        (4, 8, 4),
        (4, 9, 5),
        (5, 4, 4),
        (5, 5, 5),
        (5, 9, 5),
        (5, 40, 5),
        (0, 40, 1),
    ],
)
def test_a_state_moves_one_step_when_the_released_boundaries_are_reached(state, count, then):
    states = states_at([state, 2], Fixed())
    states.move(0, {0: count, 1: 2})
    assert states.of(0).tolist() == [then, 2]
    assert states.moves == (state != then)


@pytest.mark.parametrize(
    ("up", "down", "state", "count", "then"),
    [(2, 3, 2, 3, 2), (2, 3, 2, 4, 3), (2, 3, 4, 2, 4), (2, 3, 4, 1, 3), (1, 1, 2, 3, 3), (1, 1, 2, 1, 1)],
)
def test_other_boundaries_are_gone_by(up, down, state, count, then):
    states = states_at([state], Fixed(up, down))
    states.move(0, {0: count})
    assert states.of(0).tolist() == [then]


def test_who_is_not_counted_counts_nothing():
    states = states_at([5, 3, 1, 0], Fixed())
    states.move(0, {})
    assert states.of(0).tolist() == [4, 2, 0, 0]
    assert states.moves == 3


def test_layers_are_apart_and_old_states_stay_what_they_were():
    states = States([2, 5], 2, Fixed())
    before = states.of(5)
    states.move(5, {1: 9})
    assert before.tolist() == [0, 0]
    assert (states.of(2).tolist(), states.of(5).tolist()) == ([0, 0], [0, 1])


def test_boundaries_begin_as_released_and_follow_the_mean_surprise():
    calibrated = Calibrated(gain=0.1)
    assert calibrated.of(0) == (B_UP, B_DOWN) == Fixed().of(0)
    # Upward 1 and 3: a mean of 2. mu_up = 0.9 * 5 + 0.1 * 2 = 4.7; downward nothing: stays.
    calibrated.observe(0, np.array([1, 3, 0]))
    assert calibrated._means[0] == pytest.approx((4.7, 1.0))
    assert calibrated.of(0) == (5, 1)
    # mu_up = 0.9 * 4.7 + 0.1 * 1 = 4.33; mu_down = 0.9 * 1 + 0.1 * 4 = 1.3
    calibrated.observe(0, np.array([1, -4]))
    assert calibrated._means[0] == pytest.approx((4.33, 1.3))
    assert calibrated.of(0) == (4, 1)
    assert calibrated.of(1) == (B_UP, B_DOWN), "per layer"


def test_boundaries_stay_within_the_states_and_halves_go_up():
    calibrated = Calibrated(gain=1.0)
    for surprises, both in (
        ([40, -40], (MOST, MOST)),
        ([1, -1], (1, 1)),
        ([2, 3, -1, -2], (3, 2)),
        ([1, 2, -2, -3], (2, 3)),
        ([0, 0], (2, 3)),
    ):
        calibrated.observe(3, np.array(surprises))
        assert calibrated.of(3) == both, surprises


def test_the_window_that_calibrates_was_moved_by_the_boundaries_before_it():
    states = States([0], 1, Calibrated(gain=1.0))
    states.move(0, {0: 1})  # b_up is 5: holds; then mu_up = 1
    assert states.of(0).tolist() == [0]
    states.move(0, {0: 1})
    assert states.of(0).tolist() == [1]


@given(st.lists(st.dictionaries(st.integers(0, 3), st.integers(1, 12)), max_size=40), st.booleans())
def test_states_keep_to_their_range_and_move_one_step(windows, adaptive):
    states = States([0], 4, Calibrated() if adaptive else Fixed())
    moves = 0
    for counts in windows:
        before = states.of(0)
        states.move(0, counts)
        step = states.of(0) - before
        assert np.abs(step).max() <= 1
        assert states.of(0).min() >= 0
        assert states.of(0).max() <= MOST
        moves += int(np.abs(step).sum())
    assert states.moves == moves
