"""An engine whose requests are computed by several data-parallel groups, each with a memory of its own."""

import pytest
import torch

from smoe.core.config import EngineConfig
from smoe.core.errors import ConfigError
from smoe.core.parallel import ParallelConfig
from smoe.core.step import SampledToken, StepPlan, StepResult
from smoe.engine.build import build_runner
from smoe.engine.core import EngineCore
from smoe.engine.runner import Runner
from smoe.models.kv import KVCache
from tests.engine.collect import drain, merge, request, run_alone
from tests.engine.fakes import INFO, SPEC, FakeBank, FakeDecoder, make_core

PROMPTS = [[3], [9] * 40, [4, 5, 6], list(range(2, 23)), [7, 8] * 13, [5], [6, 6]]
ROWS = 96


def rank(group: int | None, *, samples: bool = True) -> Runner:
    kv = KVCache(SPEC, num_rows=ROWS, num_states=8, dtype=torch.float32)
    return Runner(FakeDecoder(ROWS), kv, FakeBank(), INFO, group=group, samples=samples)  # type: ignore[arg-type]


class Groups:
    """An Executor over one fake rank a group, which `lose_at` loses in that step."""

    def __init__(self, count: int, lose_at: int = 0) -> None:
        self.ranks = [rank(group) for group in range(count)]
        self._left = lose_at

    def execute(self, plan: StepPlan) -> StepResult:
        results = [each.execute(plan) for each in self.ranks]
        self._left -= 1
        if self._left == 0:
            raise ConnectionError("device lost")
        for group, result in enumerate(results):
            assert len(result.tokens) == len(plan.spans)
            for span, token in zip(plan.spans, result.tokens, strict=True):
                assert token is None or span.group == group
        return StepResult(tokens=tuple(results[span.group].tokens[i] for i, span in enumerate(plan.spans)))

    def __getattr__(self, name: str) -> object:
        return getattr(self.ranks[0], name)


def core(executor: Groups, **limits: int) -> EngineCore:
    sizes = {"max_num_seqs": 8, "max_num_batched_tokens": 64} | limits
    return EngineCore(executor, None, num_groups=len(executor.ranks), **sizes)  # type: ignore[arg-type]


@pytest.mark.parametrize("groups", [1, 2, 3, 9])
@pytest.mark.parametrize("budget", [5, 64])
def test_every_request_gets_what_it_gets_alone(groups: int, budget: int) -> None:
    engine = core(Groups(groups), max_num_batched_tokens=budget)
    engine.add([request(str(i), prompt, max_tokens=5 + i) for i, prompt in enumerate(PROMPTS)])
    outcomes = drain(engine)
    for i, prompt in enumerate(PROMPTS):
        assert outcomes[str(i)].token_ids == run_alone(make_core(), prompt, max_tokens=5 + i).token_ids
        assert outcomes[str(i)].reason == "length"
    assert engine.stats().kv_rows_total == groups * ROWS
    assert engine.stats().kv_rows_used == 0


def test_groups_have_room_of_their_own() -> None:
    engine = core(Groups(2))
    engine.add([request(str(i), [4] * 50, max_tokens=30) for i in range(2)])  # either fills most of a rank's rows
    engine.step()
    assert (engine.stats().running, engine.stats().kv_rows_used) == (2, 160)
    drain(engine)


@pytest.mark.parametrize("lose_at", range(1, 8))
def test_requests_survive_the_loss_of_the_devices_in_their_groups(lose_at: int) -> None:
    engine = core(Groups(2, lose_at), max_num_batched_tokens=24)
    engine.add([request(str(i), prompt, max_tokens=5) for i, prompt in enumerate(PROMPTS[:5])])
    deltas, groups = [], [{s.request_id: s.group for s in engine._scheduler.waiting}]
    while engine.has_work:
        try:
            deltas += engine.step()
        except ConnectionError:
            engine.recover(Groups(2))  # type: ignore[arg-type]
            groups.append({s.request_id: s.group for s in engine._scheduler.waiting})
    assert len(groups) == 2
    assert groups[1].items() <= groups[0].items()
    for i, prompt in enumerate(PROMPTS[:5]):
        assert merge(deltas)[str(i)].token_ids == run_alone(make_core(), prompt, max_tokens=5).token_ids


def test_a_rank_executes_the_spans_of_its_group_and_steps_without_any() -> None:
    plans: list[StepPlan] = []

    class Recording(Groups):
        def execute(self, plan: StepPlan) -> StepResult:
            plans.append(plan)
            return super().execute(plan)

    executor = Recording(2)
    engine = core(executor)
    engine.add([request("a", [3, 4, 5], max_tokens=3)])
    drain(engine)
    sizes = [each._decoder.batch_sizes for each in executor.ranks]  # type: ignore[attr-defined]
    assert sizes == [[3, 1, 1], [0, 0, 0]]
    assert [span.group for plan in plans for span in plan.spans] == [0, 0, 0]


def test_a_rank_that_does_not_sample_says_no_token() -> None:
    executor = Groups(1)
    engine = core(executor)
    engine.add([request("a", [3, 4, 5], max_tokens=3)])
    plan = engine._scheduler.schedule()
    assert plan is not None
    assert rank(0, samples=False).execute(plan).tokens == (None,)
    assert isinstance(rank(0).execute(plan).tokens[0], SampledToken)
    assert rank(1).execute(plan).tokens == (None,)


def test_one_process_cannot_be_several_groups() -> None:
    with pytest.raises(ConfigError, match=r"^data_parallel_size: 2 \(1 in one process: several devices need an actor"):
        build_runner(EngineConfig(parallel=ParallelConfig(data_parallel_size=2)))
