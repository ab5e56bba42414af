"""RayExecutor: the answers of several ranks, put together."""

from typing import Any

import pytest

from smoe.actors.executor import RayExecutor, merged
from smoe.actors.shard import ShardReady
from smoe.core.sampling import SamplingParams
from smoe.core.stats import ExecutorStats, ExpertStats, RoutingStats, TrafficStats
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


@pytest.mark.parametrize(("size", "times"), [(1, 1), (2, 2)])
def test_what_a_lossy_policy_replaced_adds_up_over_ranks(size: int, times: int) -> None:
    told = (Substituted(3, 0.5),)
    executor = RayExecutor(ShardReady(INFO, 9), Ranks(size, size, told), ranks_per_group=size)
    assert executor.execute(StepPlan(spans=(span(0),))).substituted == (Substituted(3 * times, 0.5 * times),)


def test_a_span_that_is_not_a_number_ends_with_what_could_not_be_read() -> None:
    numeric = SampledToken(None, error="numeric: logits of token 3 of the answer are not finite (maximum nan)")
    groups = [
        StepResult(tokens=((numeric,), ())),
        StepResult(tokens=((), ()), unread="a.safetensors: reading 8 bytes at offset 0: gone"),
        StepResult(tokens=((), (SampledToken(5),))),
        StepResult(tokens=((), ())),
    ]
    plan = StepPlan(spans=(span(0), span(1)))
    first, second = merged(plan, groups, 2).tokens
    assert first == (SampledToken(None, error="store: a.safetensors: reading 8 bytes at offset 0: gone"),)
    assert second == (SampledToken(5),)
    groups[1] = StepResult(tokens=((), ()))
    assert merged(plan, groups, 2).tokens[0] == (numeric,)


def test_counts_and_levels_of_all_ranks_add_up() -> None:
    class Told(Ranks):
        def call(self, method: str, *args: Any) -> list[Any]:
            assert method == "stats"
            experts = [ExpertStats(hits=rank, budget_bytes=64, peak_bytes=32 + rank) for rank in range(self._size)]
            routing = [RoutingStats(loads=((rank, 1),), by_device=(1, 0, rank), local=1) for rank in range(self._size)]
            traffic = [TrafficStats(calls=1, network_bytes=rank) for rank in range(self._size)]
            each = zip(experts, routing, traffic, strict=True)
            return [ExecutorStats(experts=e, routing=r, traffic=t) for e, r, t in each]

    found = RayExecutor(ShardReady(INFO, 9), Told(3, 3), ranks_per_group=3).stats()
    assert (found.experts.hits, found.experts.budget_bytes, found.experts.peak_bytes) == (3, 192, 99)
    assert found.routing == RoutingStats(loads=((3, 3),), by_device=(3, 0, 3), local=3)
    assert found.routing.choices == 6
    assert found.traffic == TrafficStats(calls=3, network_bytes=3)
