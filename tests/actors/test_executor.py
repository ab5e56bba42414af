"""RayExecutor: the answers of several ranks, put together."""

from typing import Any

import pytest

from smoe.actors.executor import RayExecutor
from smoe.actors.shard import ShardReady
from smoe.core.sampling import SamplingParams
from smoe.core.step import SampledToken, SpanPlan, StepPlan, StepResult, Substituted
from tests.actors.fakes import INFO


class Ranks:
    """A Link to ranks that answer with their own number for the spans of their group; not all of them sample."""

    def __init__(self, size: int, ranks_per_group: int, substituted: tuple[Substituted, ...] = ()) -> None:
        self._size, self._ranks_per_group, self._substituted = size, ranks_per_group, substituted

    def call(self, method: str, *args: Any) -> list[Any]:
        assert method == "execute"
        return [self._answer(rank, args[0]) for rank in range(self._size)]

    def _answer(self, rank: int, plan: StepPlan) -> StepResult:
        group, place = divmod(rank, self._ranks_per_group)
        samples = [span.group == group and place == 0 and span.sample is not None for span in plan.spans]
        tokens = tuple((SampledToken(rank),) if sample else () for sample in samples)
        return StepResult(tokens=tokens, substituted=self._substituted)

    def close(self) -> None:
        return


def span(group: int, *, sample: bool = True) -> SpanPlan:
    params = SamplingParams() if sample else None
    return SpanPlan(request_id="r", state_slot=0, kv_start=0, past=0, token_ids=(1,), sample=params, group=group)


@pytest.mark.parametrize(("size", "ranks_per_group"), [(1, 1), (4, 4), (3, 1), (4, 2), (6, 3)])
def test_each_span_is_answered_by_the_first_rank_of_its_group(size: int, ranks_per_group: int) -> None:
    executor = RayExecutor(ShardReady(INFO, 9), Ranks(size, ranks_per_group), ranks_per_group=ranks_per_group)
    groups = size // ranks_per_group
    spans = [span(i * 5 % groups, sample=i != 2) for i in range(7)]
    found = executor.execute(StepPlan(spans=tuple(spans))).tokens
    expected = [[] if s.sample is None else [s.group * ranks_per_group] for s in spans]
    assert [[token.token_id for token in tokens] for tokens in found] == expected


def test_what_a_lossy_policy_replaced_is_said_by_one_group() -> None:
    told = (Substituted(3, 0.5),)
    executor = RayExecutor(ShardReady(INFO, 9), Ranks(2, 2, told), ranks_per_group=2)
    assert executor.execute(StepPlan(spans=(span(0),))).substituted == told
