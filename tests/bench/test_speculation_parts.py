"""Parts of the speculation benchmark: what they are made of, and each of them on the packaged model."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from smoe.bench.result import Result
from smoe.bench.speculation import batches, compare, costs, methods, parts, predict
from smoe.bench.speculation.costs import Costs, _fit
from smoe.bench.speculation.plot import plot
from smoe.bench.speculation.reading import read_along, uniform_union
from smoe.bench.speculation.setting import Setting
from smoe.bench.speculation.size import FULL, QUICK
from smoe.bench.speculation.variation import NoisyWindow
from smoe.models.loading import model_folder

TINY = replace(
    QUICK, sets=1, tokens=6, depths=(3,), text=10, variations=1, batches=(1, 2), batch_tokens=4, small_tokens=3
)


def test_it_is_planned_to_fit_into_its_time() -> None:
    assert 15 * 60 < sum(FULL.expected_s().values()) <= 30 * 60
    assert sum(QUICK.expected_s().values()) <= 5 * 60
    for size in (FULL, QUICK):
        assert len(size.percents) == len(size.repeats)
        assert max(size.depths) < size.tokens, "the first token is no window's"


def test_even_choices() -> None:
    assert uniform_union(64, 8, 1) == pytest.approx(8)
    assert uniform_union(64, 8, 2) == pytest.approx(8 + 8 * 56 / 64)


def test_costs_are_found_again() -> None:
    work = [(8, 0), (13, 3), (24, 16), (48, 200)]
    assert _fit(work, [1e-3 * first + 1e-4 * more for first, more in work]) == pytest.approx((1e-3, 1e-4))
    row_s, further_s = _fit(work, [1e-3 * first for first, _ in work])
    assert (row_s, further_s) == pytest.approx((1e-3, 0.0), abs=1e-12)
    found = Costs({1: 1.0, 5: 3.0}, 0.1, 0.01).model(3)
    assert (found.layer_s, found.row_s, found.further_row_s) == (2.0, 0.1, 0.01)


@pytest.mark.parametrize("noise", [0.25, 0.75])
def test_noise_is_the_share_of_choices_that_are_any(noise: float) -> None:
    told: list[np.ndarray] = []

    class Ear:
        def routed(self, layer: int, ids_TK: np.ndarray) -> None:
            told.append(ids_TK)

    window = NoisyWindow(Ear(), noise, 64, seed=0)  # type: ignore[arg-type]
    ids = np.full((4, 8), 7, np.int32)
    for _ in range(500):
        window.routed(3, ids)
    assert (ids == 7).all()
    assert {each.dtype for each in told} == {np.dtype(np.int32)}
    assert np.mean(np.stack(told) == 7) == pytest.approx(1 - noise + noise / 64, abs=0.02)
    assert set(np.unique(np.stack(told))) == set(range(64))


@pytest.fixture
def setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Setting:
    """The packaged model as it is."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(costs, "ROWS", (1, 4))
    result = Result(name="try", config={})
    found = Setting(TINY, model_folder("builtin"), result, tmp_path)
    found.costs, found.recall = Costs({1: 1e-4, 9: 1e-4}, 1e-5, 1e-6), 0.9
    return found


def names(setting: Setting) -> list[str]:
    found = [figure.figure for figure in setting.result.summary]
    assert len(found) == len(set(found)), "no name twice"
    return found


def test_methods_are_compared_and_predicted(setting: Setting) -> None:
    found = compare.compare(setting, 60, 1)
    assert found.slots["INT4 self-draft"] < found.slots["demand LRU"]
    assert found.slots["fixed checkpoints, unshared"] < found.slots["INT4 self-draft"]
    assert setting.result.summary[-1].figure == "60 % memory: all gave the same tokens"
    assert setting.result.summary[-1].met
    moved = {name: sum(r.experts.bytes_moved for r in runs["prose"]) for name, runs in found.runs.items()}
    assert moved["INT4 self-draft, residuals"] < 0.8 * moved["INT4 self-draft"]
    trace = predict.trace_of(found, methods.DEMAND.name)
    trace.validate()
    ((prompt,),) = found.prompts.values()
    ((run,),) = found.runs[methods.DEMAND.name].values()
    assert trace.token_ids.tolist() == [*prompt, *run.answers[0][:-1]]
    assert trace.phase.tolist() == [0] * len(prompt) + [1] * (setting.size.tokens - 1)
    predict.predict(setting, found, methods.DEMAND.name)
    predicted = [name for name in names(setting) if "predicted over measured" in name]
    assert len(predicted) == 4
    figures = predict.predict_accuracy(setting, found, methods.DEMAND.name, found.methods["INT4 self-draft"])
    assert len(figures) == len(predict.ACCURACIES) + 1
    path = plot([found], {1: 8.0, 3: 15.0}, setting._out / "try.png", num_experts=64, top_k=8)
    assert path.stat().st_size > 10_000
    setting.save()
    raw = json.loads((setting._out / "try.json").read_text())["samples"]
    assert list(raw) == ["60 %, disk, " + ", ".join(found.runs)]


def test_a_draft_is_taken_apart_and_answers_alike(setting: Setting) -> None:
    parts.take_apart(setting, 60, methods.adaptive(3))
    found = {figure.figure: figure for figure in setting.result.summary}
    where = "60 % memory, K = 3"
    assert found[f"{where}, parts: all gave the same tokens"].met
    for name in ("whole", "without prefetch (PIO)", "also nothing shared (SIC)", "also hits after misses (SEE)"):
        assert found[f"{where}, ablation: {name}"].value
    for timing in ("adaptive", "none", "early", "late", "fixed"):
        assert found[f"{where}, prefetch {timing}"].value
    copied = found[f"{where}: time a token with KV copied over KV shared"].bound
    assert copied is not None
    assert not copied.startswith("0 kB")
    assert found["memory of a draft that shares over one that does not"].value < 1  # type: ignore[operator]
    assert f"{where}, 25 % of told routes right over all right" in names(setting)


def test_where_no_copy_fits(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    # The model before inflation is here as large as the model itself.
    monkeypatch.setattr(methods, "original", lambda tokens: replace(methods.lookup(tokens), name="ideal"))
    found = compare.compare_small(setting)
    predict.predict(setting, found, methods.DEMAND.name)
    assert sum("over demand LRU" in name for name in names(setting)) == 5
    predicted = [name for name in names(setting) if "predicted over measured" in name]
    assert not any("look-ahead" in name for name in predicted), "the routes do not tell what it would see"
    assert len(predicted) == 4


def test_batches(setting: Setting) -> None:
    batches.measure_batches(setting, 60, methods.adaptive(3))
    for batch in setting.size.batches:
        assert f"60 % memory, batch {batch}: INT4 self-draft over demand LRU" in names(setting)


def test_texts_are_read_by_model_and_copy(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "measure_depths", _depths({4: 3.0, 8: 2.0, 16: 2.5}))
    unions = read_along(setting)
    assert list(unions) == [1, 2, 3, 5, 9]
    assert unions[1] == 8.0
    assert setting.costs.row_s > 0
    setting.size = replace(TINY, depths=(4, 8, 16))
    assert compare.choose_depth(setting, 60, residual=False) == 8
    assert "60 % memory, INT4 self-draft: K of least time a token" in names(setting)


def _depths(times: dict[int, float]) -> Callable:
    def measured(*_: object, depths: tuple[int, ...], **__: object) -> list[compare.DepthResult]:
        return [compare.DepthResult(depth, [times[depth]]) for depth in depths]

    return measured
