"""Requests to data-parallel groups: by their scores, each turn reaching every group once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smoe.core.placement import RoutingTables
from smoe.sched.affinity import GroupAffinity
from smoe.sched.routing import Affinity, Rotation
from smoe.sched.scheduler import Scheduler
from tests.sched.test_scheduler import make, sequence, sizes, step


@given(st.integers(1, 6), st.lists(st.lists(st.floats(-9, 9), min_size=6, max_size=6), max_size=30))
def test_each_turn_reaches_every_group_once_and_takes_the_best_that_is_left(
    groups: int, scores: list[list[float]]
) -> None:
    rotation = Rotation(groups)
    chosen = [rotation.choose(each) for each in scores]
    for first in range(0, len(chosen), groups):
        turn = chosen[first : first + groups]
        assert len(set(turn)) == len(turn)
        for place, group in enumerate(turn):
            left = set(range(groups)) - set(turn[:place])
            assert scores[first + place][group] == max(scores[first + place][g] for g in left)


def test_equal_scores_go_round() -> None:
    rotation = Rotation(3)
    assert [rotation.choose([0.5] * 3) for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def tables() -> RoutingTables:
    """Two layers, five token ids, four devices."""
    device = np.array([[0, 1, 2, 3, 0], [1, 1, 0, 2, 3]], dtype=np.int16)
    confidence = np.array([[0.5, 1.0, 0.25, 0.5, 0.5], [0.25, 0.5, 1.0, 0.75, 1.0]], dtype=np.float16)
    states = (2, 5, 5)
    return RoutingTables(
        token_device=device,
        token_confidence=confidence,
        token_second=((device + 1) % 4).astype(np.int16),
        chain_device=np.zeros(states, dtype=np.int16),
        chain_confidence=np.zeros(states, dtype=np.float16),
    )


def test_a_prompt_scores_the_confidence_of_its_tokens_on_each_groups_devices() -> None:
    by_device = GroupAffinity(tables(), num_groups=4, devices_per_group=1)
    assert by_device([0]) == [0.25, 0.125, 0.0, 0.0]
    assert by_device([3, 4, 4]) == [0.5, 0.0, 0.375, 1.25]
    by_pair = GroupAffinity(tables(), num_groups=2, devices_per_group=2)
    assert by_pair([0]) == [0.375, 0.0]  # both layers' votes are for one group
    assert by_pair([3, 4, 4]) == [0.5, 1.625]
    assert by_pair([5, 99, -1]) == by_pair([]) == [0.0, 0.0]  # ids that the tables do not know


def grouped(groups: int, affinity: Affinity | None = None, **limits: int) -> Scheduler:
    sizes = {"kv_rows": 100, "max_num_seqs": 8, "max_num_batched_tokens": 64} | limits
    return Scheduler(**sizes, num_groups=groups, affinity=affinity)


def groups_of(scheduler: Scheduler) -> dict[str, int]:
    return {s.request_id: s.group for s in (*scheduler.running, *scheduler.waiting)}


def test_without_tables_a_turn_begins_with_the_group_that_has_least_to_do() -> None:
    scheduler = grouped(2)
    for name, prompt in (("long", 50), ("short", 2), ("next", 3), ("last", 4)):
        scheduler.add(sequence(name, prompt))
    assert groups_of(scheduler) == {"long": 0, "short": 1, "next": 1, "last": 0}


def test_with_tables_requests_go_where_their_experts_are_as_long_as_turns_allow() -> None:
    wishes = {3: [0.0, 1.0], 4: [0.0, 2.0], 5: [1.0, 0.0], 6: [0.0, 1.0]}
    scheduler = grouped(2, affinity=lambda prompt: wishes[len(prompt)])
    for prompt in (3, 4, 5, 6):
        scheduler.add(sequence(str(prompt), prompt))
    assert groups_of(scheduler) == {"3": 1, "4": 0, "5": 0, "6": 1}


def test_a_full_group_does_not_hold_up_the_others() -> None:
    scheduler = grouped(2, kv_rows=20)
    for name, prompt in (("a", 16), ("b", 2), ("c", 3), ("d", 16), ("e", 4), ("f", 4)):
        scheduler.add(sequence(name, prompt))  # 4 more rows each: a fills group 0, and d waits for it
    assert groups_of(scheduler) == {"a": 0, "b": 1, "c": 1, "d": 0, "e": 1, "f": 0}
    plan, _ = step(scheduler)
    assert [(s.request_id, s.group, s.kv_start) for s in plan.spans] == [("a", 0, 0), ("b", 1, 0), ("c", 1, 6)]
    assert [s.request_id for s in scheduler.waiting] == ["d", "e", "f"]
    scheduler.check_integrity()


def test_groups_get_even_shares_of_a_steps_tokens_and_then_what_others_leave() -> None:
    scheduler = grouped(2, max_num_batched_tokens=16)
    for name, prompt in (("a", 30), ("b", 30), ("c", 30)):
        scheduler.add(sequence(name, prompt, max_tokens=2))
    assert groups_of(scheduler) == {"a": 0, "b": 1, "c": 0}
    assert sizes(step(scheduler)[0]) == {"a": 8, "b": 8}
    assert [sizes(step(scheduler)[0]) for _ in range(3)] == [
        {"a": 8, "b": 8},
        {"a": 8, "b": 8},
        {"a": 6, "b": 6, "c": 4},  # c gets the rest of its group's share, then of the other's
    ]
    assert sizes(step(scheduler)[0]) == {"a": 1, "b": 1, "c": 14}  # one prompt is left: all of the budget is its


def test_a_group_with_many_prompts_does_not_take_the_share_of_another() -> None:
    scheduler = grouped(2, affinity=lambda prompt: [len(prompt) % 2, 0.5], max_num_batched_tokens=16)  # odd ones to 0
    for name, prompt in (("a", 3), ("b", 4), ("c", 31), ("d", 30)):
        scheduler.add(sequence(name, prompt, max_tokens=2))
    assert sizes(step(scheduler)[0]) == {"a": 3, "b": 4, "c": 5, "d": 4}
    assert sizes(step(scheduler)[0]) == {"a": 1, "b": 1, "c": 7, "d": 7}
    for name, prompt in (("e", 5), ("f", 20)):
        scheduler.add(sequence(name, prompt, max_tokens=2))
    assert sizes(step(scheduler)[0]) == {"c": 8, "d": 8}
    scheduler.finish(next(s for s in scheduler.running if s.request_id == "d"))
    assert sizes(step(scheduler)[0]) == {"c": 9, "f": 7}  # e waits behind c, though it came before f


def test_the_limit_on_sequences_is_for_all_groups_together() -> None:
    scheduler = grouped(2, max_num_seqs=3)
    for name in "abcd":
        scheduler.add(sequence(name, 2, max_tokens=9))
    assert len(step(scheduler)[0].spans) == 3


def test_a_group_is_kept_through_a_restart_and_an_abort() -> None:
    scheduler = make(groups=3, max_num_seqs=9)
    kept = [sequence(name, 4) for name in "abcdef"]
    for each in kept:
        scheduler.add(each)
    before = groups_of(scheduler)
    step(scheduler)
    assert scheduler.schedule() is not None  # this step is lost
    scheduler.restart()
    scheduler.finish(kept[2])
    assert [s.request_id for s in scheduler.waiting] == ["a", "b", "d", "e", "f"]
    plan, _ = step(scheduler)
    assert {s.request_id: s.group for s in plan.spans} == {name: before[name] for name in sizes(plan)}
    scheduler.check_integrity()


def test_check_integrity_finds_a_sequence_that_changed_its_group() -> None:
    scheduler = make(groups=2)
    scheduler.add(sequence("a", 3))
    step(scheduler)
    scheduler.running[0].group = 1
    with pytest.raises(RuntimeError, match="KV rows: 7 reserved, running sequences own 0"):
        scheduler.check_integrity()
