"""An engine whose requests are computed by several data-parallel groups, each with a memory of its own."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from smoe.core.config import EngineConfig
from smoe.core.errors import ConfigError, PlacementError, SmoeError
from smoe.core.parallel import ParallelConfig
from smoe.core.placement import Placement
from smoe.core.placement_build import contiguous
from smoe.core.placement_file import read_placement, write_placement
from smoe.core.step import ExpertsMoved, SampledToken, StepPlan, StepResult
from smoe.engine.build import build_core, build_runner
from smoe.engine.core import EngineCore
from smoe.engine.parallel import check_parallel
from smoe.engine.runner import Runner
from smoe.models.kv import KVCache
from smoe.models.loading import Checkpoint, open_checkpoint
from tests.collectives.tables import make_tables
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
            for span, tokens in zip(plan.spans, result.tokens, strict=True):
                assert not tokens or span.group == group
        return StepResult(tokens=tuple(results[span.group].tokens[i] for i, span in enumerate(plan.spans)))

    def apply_placement(self, placement: Placement, name: str) -> ExpertsMoved | SmoeError:
        return PlacementError(name) if name == "refused" else ExpertsMoved(experts=0, nbytes=0)

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
    assert rank(0, samples=False).execute(plan).tokens == ((),)
    assert isinstance(rank(0).execute(plan).tokens[0][0], SampledToken)
    assert rank(1).execute(plan).tokens == ((),)


def test_one_process_cannot_be_several_groups() -> None:
    with pytest.raises(ConfigError, match=r"^data_parallel_size: 2 \(1 in one process: several devices need an actor"):
        build_runner(EngineConfig(parallel=ParallelConfig(data_parallel_size=2)))


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return open_checkpoint("builtin")


def placement_in(folder: Path, checkpoint: Checkpoint, *, tables: bool) -> str:
    """Over two devices; with `tables`, ids up to 49 are of device 0 and the others of device 1."""
    spec = checkpoint.spec
    layers, experts = spec.moe_layers, spec.moe(spec.moe_layers[0]).router.num_experts
    made = contiguous(fingerprint=checkpoint.fingerprint, num_experts=experts, layers=layers, num_devices=2)
    if tables:
        device = np.broadcast_to(np.arange(100) >= 50, (len(layers), 100)).astype(np.int16)
        some = make_tables(2, vocab=100, layers=len(layers))
        made = replace(made, tables=replace(some, token_device=device, token_second=1 - device))
    write_placement(folder, made)
    return str(folder)


def test_tables_of_the_placement_decide_where_requests_go(tmp_path: Path, checkpoint: Checkpoint) -> None:
    folder = placement_in(tmp_path / "p", checkpoint, tables=True)
    parallel = ParallelConfig(data_parallel_size=2, placement=folder, data_parallel_routing="tables")
    engine = build_core(EngineConfig(parallel=parallel), Groups(2))  # type: ignore[arg-type]
    prompts = {"a": [60, 61, 3], "b": [70], "c": [4, 5, 80], "d": [2]}
    engine.add([request(name, prompt, max_tokens=3) for name, prompt in prompts.items()])
    groups = {s.request_id: s.group for s in engine._scheduler.waiting}
    assert groups == {"a": 1, "b": 0, "c": 0, "d": 1}  # b and d come second in their turns
    drain(engine)


def test_tables_that_are_applied_decide_for_requests_to_come(tmp_path: Path, checkpoint: Checkpoint) -> None:
    folder = placement_in(tmp_path / "p", checkpoint, tables=True)
    parallel = ParallelConfig(data_parallel_size=2, placement=folder, data_parallel_routing="tables")
    engine = build_core(EngineConfig(parallel=parallel), Groups(2))  # type: ignore[arg-type]
    now = read_placement(folder)
    assert now.tables is not None
    swapped = replace(now.tables, token_device=now.tables.token_second, token_second=now.tables.token_device)
    other = replace(now, tables=swapped)
    with pytest.raises(PlacementError):
        engine.apply_placement(other, "refused")
    engine.add([request(name, [60], max_tokens=3) for name in ("a", "b")])
    engine.apply_placement(other, "other")
    engine.add([request(name, [60], max_tokens=3) for name in ("c", "d")])
    groups = {s.request_id: s.group for s in engine._scheduler.waiting}
    assert groups == {"a": 1, "b": 0, "c": 0, "d": 1}
    drain(engine)


def test_a_placement_without_tables_cannot_route(tmp_path: Path, checkpoint: Checkpoint) -> None:
    folder = placement_in(tmp_path / "p", checkpoint, tables=False)
    parallel = ParallelConfig(data_parallel_size=2, placement=folder, data_parallel_routing="tables")
    message = r"^placement: '.*p' \(with token tables, for data_parallel_routing tables\)$"
    with pytest.raises(ConfigError, match=message):
        check_parallel(checkpoint, EngineConfig(parallel=parallel))
    with pytest.raises(ConfigError, match=message):
        build_core(EngineConfig(parallel=parallel), Groups(2))  # type: ignore[arg-type]


def test_a_placement_is_for_the_ranks_of_all_groups(tmp_path: Path, checkpoint: Checkpoint) -> None:
    folder = placement_in(tmp_path / "p", checkpoint, tables=False)
    check_parallel(checkpoint, EngineConfig(parallel=ParallelConfig(data_parallel_size=2, placement=folder)))
    both = ParallelConfig(data_parallel_size=2, tensor_parallel_size=2, placement=folder)
    with pytest.raises(ConfigError, match=r"\(4 devices; it was made for 2\)$"):
        check_parallel(checkpoint, EngineConfig(parallel=both))
