"""Loads without HTTP that keep to their times, steps as they are measured, figures of prediction and measurement."""

import itertools
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from smoe.bench.slo import prediction
from smoe.bench.slo.client import Load, Order
from smoe.bench.slo.engine_load import engine_open_load
from smoe.bench.slo.prediction import COMPARED, ENGINE, HTTP, WITHOUT, Compared, _figures
from smoe.bench.slo.step_profile import Grid, measure_steps, pooled
from smoe.bench.slo.study import Offered
from smoe.core.config import EngineConfig
from smoe.core.errors import ConfigError
from smoe.sim.serving.fitted import MeasuredStep, StepProfile
from smoe.sim.serving.front import ClosedLoop, Front
from smoe.sim.serving.load import StepLoad
from tests.bench.test_throughput import Engine, client
from tests.sim.serving.test_fitted import profile
from tests.sim.serving.test_front import loops


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


def test_profiles_of_one_grid_are_pooled() -> None:
    def of(*seconds: float) -> StepProfile:
        steps = tuple(MeasuredStep(StepLoad(decode_rows=n), each) for n, each in enumerate(seconds))
        return StepProfile(moe_layers=1, num_experts=8, top_k=2, steps=steps, setting={"model": "made up"})

    held_up = [of(1.0, 20.0), of(10.0, 2.0), of(1.5, 3.0)]
    assert pooled(held_up) == of(1.5, 3.0)


def test_a_grid_that_does_not_fit() -> None:
    with pytest.raises(ConfigError, match="contexts: 2000"):
        measure_steps(EngineConfig(), [1, 2, 3], Grid(contexts=(2000,)))


def test_figures_say_both_sides() -> None:
    def side(value: float, share: float) -> dict:
        return {**dict.fromkeys(COMPARED, value), "slo_attainment": share}

    rows = [
        Compared(way="in process", rate=1.0, measured=[side(10.0, 1.0)], predicted=side(12.0, 0.9)),
        Compared(
            way="in process",
            rate=2.0,
            measured=[side(50.0, 0.1), side(20.0, 0.5), side(19.0, 1.0)],
            predicted=side(20.0, 0.75),
        ),
        Compared(way="in process", rate=3.0, measured=[side(40.0, 0.5)], predicted=side(20.0, 0.5)),
    ]
    figures = {figure.figure: figure for figure in _figures(rows)}
    ttft = figures["in process: simulated over measured mean_ttft"]
    assert ttft.value == 1.0
    assert ttft.bound == "at 1/s 12.00 for 10.00 ms; 2/s 20.00 for 20.00 ms (19.00 to 50.00); 3/s 20.00 for 40.00 ms"
    [share] = [figure for name, figure in figures.items() if "minus measured share" in name]
    assert share.value == pytest.approx(25.0)


def test_rounds_alternate_and_http_is_foretold_with_its_front_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is measured: each run says that everything took 100 ms."""
    did: list[str] = []
    run = {**dict.fromkeys(COMPARED, 100.0), "slo_attainment": 1.0}
    slow = Front(step_s=0.0, answer_s=1e-4, request_s=1e-2)

    def steps(config: EngineConfig, text: list[int], grid: Grid) -> StepProfile:
        did.append("steps")
        return profile()

    def fronts(*_: object) -> list[ClosedLoop]:
        did.append("front")
        return loops(slow)

    def engine_load(client: object, orders: list[Order]) -> Load:
        did.append("engine")
        return Load(records=(), begun_s=0.0, ended_s=1.0)

    class Study:
        def __init__(self, **_: object) -> None:
            pass

        def warm_up(self, requests: int) -> None:
            pass

        def at(self, offered: Offered) -> list[SimpleNamespace]:
            did.append("http")
            return [SimpleNamespace(figures=run)]

    client = SimpleNamespace(stats=lambda: SimpleNamespace(kv_rows_total=16384), shutdown=lambda: did.append("end"))
    fakes = {
        "measure_steps": steps,
        "measure_front": fronts,
        "engine_open_load": engine_load,
        "Study": Study,
        "summarise": lambda *_: run,
        "build_local_client": lambda config: client,
        "front_of": lambda config: nullcontext("a target"),
        "SHARES_OF_LIMIT": (0.1, 0.9),
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(prediction, name, fake)

    figures, samples = prediction.predict_and_measure()
    rates = ["engine", "engine", "http"] * 2  # each in process is two, the first of which warms up
    assert did == ["steps", "steps", *["front", *rates, "steps"] * 3, "end"]
    assert [load["way"] for load in samples["loads"]] == [way for way in (ENGINE, HTTP, WITHOUT) for _ in range(2)]
    assert all(load["measured"] == [run] * 3 for load in samples["loads"])
    simulated = [load["simulated"]["mean_ttft_ms"] for load in samples["loads"]]
    assert simulated[:2] == simulated[4:], "without the front what is foretold of HTTP is what is of the engine"
    assert simulated[2] > simulated[0] + 10, "a request takes 10 ms more"
    [front] = [figure for figure in figures if figure.figure.startswith("what HTTP adds")]
    assert (front.value, front.bound) == (pytest.approx(0.1), "and 0.00 ms a step, 10.00 ms a request")
