"""Plans from counts, by hand."""

import numpy as np
import pytest

from smoe.offload.policies.draft_plan import DraftCounts, PlanRule

LAYERS = (1, 3)
USUAL = PlanRule()


def counted(rule=USUAL, layer_1=(), layer_3=()):
    """`layer_x` are the experts chosen, one a row."""
    counts = DraftCounts(LAYERS, 6, rule)
    for layer, experts in zip(LAYERS, (layer_1, layer_3), strict=True):
        counts.add(layer, np.array(experts, dtype=np.int32).reshape(-1, 1))
    return counts


def test_the_most_chosen_of_each_layer_first_layer_first():
    counts = counted(layer_1=[4, 4, 4, 2, 5, 5], layer_3=[0, 1, 1])
    assert counts.plan(2) == ([(1, 4), (1, 5), (3, 1), (3, 0)], True)
    assert counts.plan(3) == ([(1, 4), (1, 5), (1, 2), (3, 1), (3, 0)], False)
    assert counts.chosen() == [(1, 2), (1, 4), (1, 5), (3, 0), (3, 1)]


def test_choices_of_all_rows_and_steps_add_up():
    counts = DraftCounts(LAYERS, 6, USUAL)
    counts.add(1, np.array([[0, 2], [2, 3]], dtype=np.int32))
    counts.add(1, np.array([[3, 2], [5, 1]], dtype=np.int32))
    assert counts.plan(3)[0] == [(1, 2), (1, 3), (1, 0)]


def test_nobody_is_named_that_was_not_chosen():
    assert counted().plan(4) == ([], False)
    assert counted(layer_3=[2]).plan(4) == ([(3, 2)], False)


def test_cleared_counts_name_nobody():
    counts = counted(layer_1=[1, 2])
    counts.clear()
    assert counts.plan(4) == ([], False)
    assert counts.chosen() == []


def test_sticky_keeps_members_of_the_last_plan_among_equals():
    for sticky, expected in ((False, 1), (True, 4)):
        counts = counted(PlanRule(sticky=sticky), layer_1=[4])
        counts.plan(1)
        counts.add(1, np.array([[1]], dtype=np.int32))
        assert counts.plan(1)[0] == [(1, expected)]
        counts.add(1, np.array([[1]], dtype=np.int32))
        assert counts.plan(1)[0] == [(1, 1)], "only among equals"


def test_residents_first_only_among_the_chosen():
    counts = counted(PlanRule(resident_first=True), layer_1=[4, 4, 2], layer_3=[5, 5])
    assert counts.needs_residents
    assert counts.plan(1, {(1, 2), (3, 0)})[0] == [(1, 2), (3, 5)]
    assert counts.plan(2, {(1, 2), (3, 0)})[0] == [(1, 2), (1, 4), (3, 5)]


def test_a_minimum_count():
    counts = counted(PlanRule(min_count=2), layer_1=[4, 4, 2], layer_3=[5])
    assert counts.plan(4)[0] == [(1, 4)]


@pytest.mark.parametrize(
    ("slots", "expected", "full"),
    [
        (1, [(1, 4), (3, 0)], True),
        (2, [(1, 4), (1, 5), (1, 2), (3, 0)], True),
        (3, [(1, 4), (1, 5), (1, 2), (1, 1), (3, 0)], False),
    ],
)
def test_demand_gives_what_one_layer_leaves_to_another(slots, expected, full):
    counts = counted(PlanRule(scale="demand"), layer_1=[4, 4, 4, 5, 5, 5, 2, 2, 1], layer_3=[0])
    assert counts.plan(slots) == (expected, full)


def test_demand_gives_the_rest_to_the_most_chosen():
    rule = PlanRule(scale="demand")
    counts = DraftCounts((0, 1, 2), 6, rule)
    for layer, experts in enumerate(([0, 1, 1], [0, 1, 2, 2, 3, 3, 3], [])):
        counts.add(layer, np.array(experts, dtype=np.int32))
    assert counts.plan(1) == ([(0, 1), (1, 3), (1, 2)], True)
