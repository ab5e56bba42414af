"""Loads without HTTP that keep to their times, steps as they are measured, figures of prediction and measurement."""

import itertools

import pytest

from smoe.bench.slo.client import Order
from smoe.bench.slo.engine_load import engine_open_load
from smoe.bench.slo.prediction import COMPARED, Compared, _figures
from smoe.bench.slo.step_profile import Grid, measure_steps
from smoe.core.config import EngineConfig
from smoe.core.errors import ConfigError
from tests.bench.test_throughput import Engine, client


class Stepwise(Engine):
    """Notes how many were in flight at each poll."""

    def __init__(self) -> None:
        super().__init__()
        self.polled: list[int] = []

    def poll(self, timeout_s: float | None = None) -> list:
        assert timeout_s == 0.0, "one step a poll, so that those who are due get in between"
        self.polled.append(len(self.flight))
        return super().poll(timeout_s)


def test_requests_go_out_when_they_are_due() -> None:
    engine = Stepwise()
    due = [0.0, 0.0, 0.02, 0.021]
    orders = [
        Order(request_id=str(n), at_s=at, prompt=(1, n), prompt_tokens=2, max_tokens=3)
        for n, at in reversed(list(enumerate(due)))
    ]
    load = engine_open_load(client(engine), orders)
    assert [request.request_id for request in engine.submitted][2:] == ["2", "3"]
    assert [record.request_id for record in load.records] == ["3", "2", "1", "0"]
    assert [round(record.scheduled_s - load.begun_s, 9) for record in load.records] == due[::-1]
    assert all(record.sent_s == record.scheduled_s for record in load.records), "what holds it up is the engine's time"
    assert engine.polled[0] == 2
    assert min(engine.polled) > 0, "nothing is asked of an idle engine"
    for record in load.records:
        assert record.output_tokens == 3
        assert record.sent_s <= record.chunk_s[0] <= record.chunk_s[-1] <= load.ended_s


def test_steps_of_an_engine_are_measured() -> None:
    grid = Grid(batches=(1, 3), contexts=(4, 9), prompts=(5,), decodes=2, repeats=2)
    profile = measure_steps(EngineConfig(max_num_seqs=8), list(range(5, 500)), grid)
    assert (profile.moe_layers, profile.num_experts, profile.top_k) == (6, 64, 8)
    loads = [step.load for step in profile.steps]
    # Each case: its prompts at once, a decode, and a decode with a prompt in it.
    expected = [
        kind
        for batch, context in itertools.product(grid.batches, grid.contexts)
        for kind in ((batch * context, 0), (0, batch), (5, batch))
    ]
    assert [(load.prefill_tokens, load.decode_rows) for load in loads] == expected
    assert [load.decode_pairs for load in loads[9:]] == [0, 3 * 10, 3 * 11]
    assert all(step.seconds > 0 for step in profile.steps)
    assert profile.setting["model"] == "builtin"


def test_a_grid_that_does_not_fit() -> None:
    with pytest.raises(ConfigError, match="contexts: 2000"):
        measure_steps(EngineConfig(), [1, 2, 3], Grid(contexts=(2000,)))


def test_figures_say_both_sides() -> None:
    def side(value: float, share: float) -> dict:
        return {**dict.fromkeys(COMPARED, value), "slo_attainment": share}

    rows = [
        Compared(way="in process", rate=1.0, measured=side(10.0, 1.0), predicted=side(12.0, 0.9)),
        Compared(way="in process", rate=2.0, measured=side(20.0, 0.5), predicted=side(20.0, 0.75)),
        Compared(way="in process", rate=3.0, measured=side(40.0, 0.5), predicted=side(20.0, 0.5)),
    ]
    figures = {figure.figure: figure for figure in _figures(rows)}
    ttft = figures["in process: simulated over measured mean_ttft"]
    assert ttft.value == 1.0
    assert ttft.bound == "at 1/s 12.00 for 10.00 ms; 2/s 20.00 for 20.00 ms; 3/s 20.00 for 40.00 ms"
    [share] = [figure for name, figure in figures.items() if "minus measured share" in name]
    assert share.value == pytest.approx(25.0)
