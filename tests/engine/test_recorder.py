from pathlib import Path

import numpy as np
import pytest
import torch

from smoe.core.errors import ConfigError
from smoe.core.route_trace import read_route_trace
from smoe.core.step import SpanPlan, StepPlan
from smoe.engine.core import EngineCore
from smoe.engine.recorder import RouteRecorder
from tests.engine.collect import drain, request
from tests.engine.fakes import INFO, LOST_TOKEN, NAN_TOKEN, make_runner

PROMPTS = {"a": [3, 4, 5, 6, 7], "b": [9] * 4, "c": [10]}


def record(path: Path, requests: list, *, fraction: float = 1.0, budget: int = 4) -> dict[str, list[int]]:  # type: ignore[type-arg]
    """Token ids that went into the model, by request."""
    recorder = RouteRecorder(path, INFO)
    core = EngineCore(
        make_runner(recorder=recorder),
        None,
        max_num_seqs=4,
        max_num_batched_tokens=budget,
        record_fraction=fraction,
        seed=1,
    )
    core.add(requests)
    outcomes = drain(core)
    core.executor.shutdown()
    prompts = {r.request_id: list(r.prompt_token_ids) for r in requests}
    return {name: prompts[name] + outcome.token_ids[:-1] for name, outcome in outcomes.items()}


@pytest.mark.parametrize("budget", [3, 64])
def test_each_sequence_is_whole_whatever_the_batches_were(tmp_path: Path, budget: int) -> None:
    path = tmp_path / "routes.safetensors"
    known = record(path, [request(n, p, max_tokens=4) for n, p in PROMPTS.items()], budget=budget)
    trace = read_route_trace(path)
    assert (trace.fingerprint, trace.layers, trace.num_experts, trace.top_k) == (INFO.fingerprint, (1, 3), 8, 2)
    assert trace.num_sequences == 3
    for start, end, (name, token_ids) in zip(
        trace.sequence_start, trace.sequence_start[1:], known.items(), strict=False
    ):
        assert trace.token_ids[start:end].tolist() == token_ids
        prompt = len(PROMPTS[name])
        assert trace.phase[start:end].tolist() == [0] * prompt + [1] * 3
    expected = trace.token_ids[None, :, None] % 4 + np.array([4, 0])  # heavier first: 0.75 belongs to the upper half
    assert (trace.expert_ids == expected).all()
    assert trace.expert_weights is not None
    assert (trace.expert_weights == [0.75, 0.25]).all()


def test_a_fraction_of_the_requests(tmp_path: Path) -> None:
    path = tmp_path / "routes.safetensors"
    record(path, [request(str(i), [3], max_tokens=2) for i in range(60)], fraction=0.5)
    assert 15 < read_route_trace(path).num_sequences < 45


def test_a_step_that_fails_is_not_recorded_twice(tmp_path: Path) -> None:
    path = tmp_path / "routes.safetensors"
    requests = [request("a", [3, 4], max_tokens=3), request("lost", [5, LOST_TOKEN])]
    known = record(path, requests, budget=64)
    trace = read_route_trace(path)
    assert trace.token_ids.tolist() == known["a"]


def test_what_a_failed_forward_has_seen_is_forgotten(tmp_path: Path) -> None:
    recorder = RouteRecorder(tmp_path / "routes.safetensors", INFO)

    def plan(record: bool) -> StepPlan:
        span = SpanPlan(request_id="a", state_slot=0, kv_start=0, past=0, token_ids=(3,), record=record)
        return StepPlan(spans=(span,))

    sink = recorder.begin(plan(True))
    assert sink is not None
    sink(INFO.moe_layers[0], torch.tensor([[1, 2]]), torch.tensor([[0.5, 0.5]]), torch.zeros(1, 8))
    assert recorder.begin(plan(False)) is None
    recorder.commit(plan(False), [1])


def test_recording_nothing_writes_no_file(tmp_path: Path) -> None:
    path = tmp_path / "routes.safetensors"
    RouteRecorder(path, INFO).write()
    assert not path.exists()


def test_a_folder_that_does_not_exist_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"record_routes: .*no/x' "):
        RouteRecorder(tmp_path / "no" / "x", INFO)


def test_a_request_with_a_numeric_error_keeps_the_rest_of_the_trace(tmp_path: Path) -> None:
    path = tmp_path / "routes.safetensors"
    record(path, [request("a", [3, 4], max_tokens=3), request("bad", [5, NAN_TOKEN])], budget=64)
    assert read_route_trace(path).num_sequences >= 1


@pytest.mark.parametrize("wanted", [False, True])
def test_logits_are_kept_when_asked_for(tmp_path: Path, wanted: bool) -> None:
    path = tmp_path / "routes.safetensors"
    recorder = RouteRecorder(path, INFO, logits=wanted)
    logits_LTE = torch.arange(2 * 3 * 8).reshape(2, 3, 8) / 4
    for past, count in ((0, 2), (2, 1)):
        # A row of another request, which is not recorded, comes first.
        spans = (
            SpanPlan(request_id="b", state_slot=1, kv_start=9, past=past, token_ids=(1,)),
            SpanPlan(request_id="a", state_slot=0, kv_start=0, past=past, token_ids=(3,) * count, record=True),
        )
        sink = recorder.begin(StepPlan(spans=spans))
        assert sink is not None
        for index, layer in enumerate(INFO.moe_layers):
            rows_TE = torch.cat([torch.full((1, 8), 99.0), logits_LTE[index, past : past + count]])
            ids_TK = torch.tensor([[1, 2]]).expand(1 + count, 2)
            sink(layer, ids_TK, torch.full((1 + count, 2), 0.5), rows_TE)
            rows_TE.zero_()
        recorder.commit(StepPlan(spans=spans), [len(span.token_ids) for span in spans])
    recorder.write()
    found = read_route_trace(path).router_logits
    if not wanted:
        assert found is None
    else:
        assert found is not None
        assert (found == logits_LTE.numpy()).all()
