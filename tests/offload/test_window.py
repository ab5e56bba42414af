"""Timings of windows, against traces worked out by hand."""

import numpy as np
import pytest

from smoe.core.draft import TIMINGS
from smoe.offload.window import Phase, make_window

LAYERS = (0, 2)
MB = 1_000_000


class Link:
    """Notes what it is asked for; each expert not asked for before in the window is 12 MB."""

    def __init__(self, slots_a_layer=2, bytes_per_second=12_000 * MB):
        self.slots_a_layer, self.bytes_per_second = slots_a_layer, bytes_per_second
        self.asked, self.polls, self._known = [], 0, set()

    def prefetch(self, keys):
        self.asked.append(list(keys))
        new = set(keys) - self._known
        self._known |= new
        return 12 * MB * len(new)

    def poll(self):
        self.polls += 1

    def resident(self):
        return ()


def draft(window, routes, *, steps=None, seconds=4e-3, link=None):
    """`routes[s]` are the experts that each layer chooses in step s. Returns (boundary, phase, plans) after each."""
    window.begin(steps or len(routes))
    seen = []
    for step in routes:
        for layer in LAYERS:
            window.routed(layer, np.array([step], dtype=np.int32))
        window.after_step(seconds)
        seen.append((getattr(window, "boundary", None), getattr(window, "phase", None), len(link.asked)))
    window.before_verify()
    return seen


def test_adaptive_boundaries_by_hand():
    """Step times 4 ms from a first guess of 1: 1.75, 2.3125, 2.734, 3.051, 3.288 ms after steps 1 .. 5; 1 ms an
    expert."""
    link = Link(slots_a_layer=3)
    window = make_window("adaptive", link, LAYERS, 9)
    seen = draft(window, [[0], [0], [1], [1], [2], [2], [2], [2], [2], [2]], link=link)
    # floor(0.2 * 10) = 2: expert 0 of two layers, 2 ms at 2.3125 ms a step -> 1 step -> 3: expert 1, 2 ms / 2.734 -> 4,
    # nothing new -> 5: expert 2, the plans are full.
    assert seen[0] == (2, Phase.COLD_START, 0)
    assert seen[1] == (3, Phase.PREFETCH_OVERLAP, 1)
    assert seen[2] == (4, Phase.PREFETCH_OVERLAP, 2)
    assert seen[3] == (5, Phase.PREFETCH_OVERLAP, 3)
    assert seen[4] == (6, Phase.CLEANUP, 4)
    assert seen[5:] == [(6, Phase.CLEANUP, 4)] * 5
    assert link.asked == [
        [(0, 0), (2, 0)],
        [(0, 0), (0, 1), (2, 0), (2, 1)],
        [(0, 0), (0, 1), (2, 0), (2, 1)],
        [(0, 0), (0, 1), (0, 2), (2, 0), (2, 1), (2, 2)],
    ]


def test_a_slow_link_is_left_alone_until_it_has_drained():
    link = Link(slots_a_layer=9, bytes_per_second=3_000 * MB)  # 4 ms an expert
    window = make_window("adaptive", link, LAYERS, 9)
    seen = draft(window, [[0, 1], [2, 3], [4, 5], [6, 7], [8, 0], [1, 2], [3, 4], [5, 6]], link=link)
    # floor(1.6) = 1: 4 experts, 16 ms at 1.75 ms a step -> 10 -> at most 8: no later one.
    assert seen[0] == (8, Phase.CLEANUP, 1)
    assert seen[-1] == (8, Phase.CLEANUP, 1)
    window = make_window("adaptive", link := Link(slots_a_layer=9, bytes_per_second=12_000 * MB), LAYERS, 9)
    seen = draft(window, [[0, 1], [2, 3], [4, 5], [6, 7], [8, 0], [1, 2], [3, 4], [5, 6]], link=link)
    # 4 experts of 1 ms / 1.75 -> 3 steps -> 4; then those of steps 2 to 4, 12 ms / 3.051 ms -> 4 -> the end.
    assert [boundary for boundary, _, _ in seen] == [4, 4, 4, 8, 8, 8, 8, 8]
    assert [phase for _, phase, _ in seen] == [Phase.PREFETCH_OVERLAP] * 3 + [Phase.CLEANUP] * 5


@pytest.mark.parametrize(("steps", "first"), [(1, None), (2, 1), (4, 1), (8, 1), (16, 3), (32, 6)])
def test_the_first_boundary_is_a_fifth_of_the_draft(steps, first):
    link = Link()
    window = make_window("adaptive", link, LAYERS, 4)
    seen = draft(window, [[0]] * steps, link=link)
    planned = [step for step, (_, _, plans) in enumerate(seen, 1) if plans]
    assert (planned[0] if planned else None) == first


def test_step_times_outlive_a_window_and_boundaries_do_not():
    link = Link(slots_a_layer=9)
    window = make_window("adaptive", link, LAYERS, 4)
    draft(window, [[0]] * 12, link=link, seconds=1e-3)
    link._known.clear()
    draft(window, [[0]] * 10, link=link, seconds=1e-3)
    window.begin(10)
    assert (window.boundary, window.phase) == (2, Phase.COLD_START)


@pytest.mark.parametrize(
    ("timing", "plans"),
    [("none", []), ("early", [1]), ("late", [10]), ("fixed", [2, 6]), ("adaptive", [2, 3, 4, 5, 6, 7, 8, 9])],
)
def test_when_each_timing_asks(timing, plans):
    """A plan is known by how often expert 0 and how often others had been chosen."""
    link = Link(slots_a_layer=99)
    window = make_window(timing, link, LAYERS, 20)
    draft(window, [[step] for step in range(10)], link=link, seconds=1.0)
    assert [len(keys) // 2 for keys in link.asked] == plans
    assert link.polls + len(link.asked) == 11, "each step takes in what has arrived, once"


@pytest.mark.parametrize(("timing", "planned"), [("late", [7, 8, 1, 3]), ("fixed", [1, 3, 5, 8])])
def test_residents_stay_in_the_plan_unless_it_is_the_published_one(timing, planned):
    link = Link(slots_a_layer=4)
    link.resident = lambda: {(layer, e) for layer in LAYERS for e in (0, 7, 8)}
    draft(make_window(timing, link, LAYERS, 9), [[1, 3, 5, 8], [1, 3, 5, 7], [1, 3, 5, 7]], link=link)
    assert link.asked[-1] == [(layer, e) for layer in LAYERS for e in planned], "0 was not chosen"


def test_fixed_checkpoints_of_a_short_draft_are_one():
    link = Link()
    draft(make_window("fixed", link, LAYERS, 4), [[0]], link=link)
    assert len(link.asked) == 1


def test_a_window_verified_early_or_at_once():
    for timing in TIMINGS:
        link = Link()
        window = make_window(timing, link, LAYERS, 4)
        draft(window, [[0], [1]], steps=8, link=link)
        window.begin(4)
        window.before_verify()
        draft(window, [[3]] * 4, link=link)
        assert all((0, 3) in keys for keys in link.asked[-1:]), "counts of the windows before are gone"
        assert not any((0, 0) in keys for keys in link.asked[-1:])
