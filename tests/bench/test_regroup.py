"""`smoe bench regroup` on made-up routes: figures appear, and say what they must."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from smoe.bench.regroup import builtin_part, data, deepseek, gpt_oss, scale, small
from smoe.bench.regroup import run as regroup_run
from smoe.bench.regroup.session import ALONE, FREE, HELD, OURS, Session
from smoe.bench.result import Result
from smoe.clustering.compare import in_process
from smoe.core.errors import ConfigError, TraceError
from smoe.core.route_trace import RouteTrace

LAYERS, TOKENS, LENGTH = 2, 1600, 40


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files as benchmarks/data has them, small."""
    chance = np.random.default_rng(0)
    starts = np.arange(0, TOKENS + 1, LENGTH)
    token_uid = chance.integers(0, 60, TOKENS)

    def routes(experts: int, top_k: int, layers: int) -> np.ndarray:
        taste = np.random.default_rng(1).gumbel(size=(layers, 60, experts)) * 2
        score = taste[:, token_uid] + chance.gumbel(size=(layers, TOKENS, experts))
        return np.argsort(-score, axis=-1)[..., :top_k].astype(np.uint8)

    kinds = ["gpqa_main", "mmlu_test", "mmlu_pro_test", "sorry_bench_base", "tulu3_persona_if"]
    names = np.array([kinds[i % 5] for i in range(len(starts) - 1)])
    np.savez(tmp_path / data.GPT_OSS, ids=routes(32, 4, 24), seq_start=starts, token_uid=token_uid, dataset=names)
    ids = routes(64, 6, 26)
    tasks = {f"{task}_ids": ids for task in deepseek.TASKS} | {f"{task}_seq_start": starts for task in deepseek.TASKS}
    np.savez(tmp_path / data.DEEPSEEK, **tasks)
    return tmp_path


@pytest.fixture
def session(tmp_path: Path) -> Session:
    result = Result(name="r", config={}, environment={})
    return Session(result=result, fan_out=in_process, out=tmp_path / "out", quick=True)


def cut(trace: RouteTrace) -> RouteTrace:
    return data.only_layers(trace, np.arange(LAYERS))


def test_files_become_traces_with_kinds(folder: Path) -> None:
    decode, prefill = data.gpt_oss(folder), data.deepseek(folder)
    decode.validate()
    prefill.validate()
    assert decode.labels is not None
    assert decode.labels[:5] == ("gpqa", "mmlu", "mmlu-pro", "safety", "other")
    assert prefill.num_sequences == 4 * decode.num_sequences
    assert prefill.layers[0] == 1
    assert data.only_layers(prefill, np.array([0, 6])).layers == (1, 7)


def test_data_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"gpt_oss_20b_decode.npz: no such file"):
        data.gpt_oss(tmp_path)


def test_a_part_that_is_not_one_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"parts: 'scales' \(of gpt-oss, deepseek, builtin, small, scale\)"):
        regroup_run.run(quick=True, out=tmp_path, data=tmp_path, parts=("scales",))


def test_gpt_oss_figures(session: Session, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    baselines = ("contiguous", "metis", "kmeans")
    monkeypatch.setattr(gpt_oss, "BASELINES", baselines)
    names = (OURS, ALONE, *baselines)
    monkeypatch.setattr(
        gpt_oss, "entries", lambda quick: [(name, balance) for name in names for balance in (FREE, HELD)]
    )
    gpt_oss.run(session, cut(data.gpt_oss(folder)))
    figures = {figure.figure: figure for figure in session.result.summary}
    free = figures["gpt-oss-20b: held-out LAR, 4 devices, free load"]
    assert free.value is not None
    assert free.met == (free.value >= 0.67)
    assert figures["gpt-oss-20b: LAR vanilla, free load"].value == pytest.approx(0.25, abs=0.05)
    for batches in ("mixed", "one sequence"):
        for kind in ("equal chunks", "ragged, factor 1.25", "ragged, factor 1.5", "ragged, factor 2"):
            assert f"gpt-oss-20b: LAR after alignment, {batches}, {kind}, load <= 1.35" in figures
    assert any("by T above metis at its imbalance" in name for name in figures)
    assert {path.name for path in session.out.iterdir()} == {
        "regroup-front.png",
        "regroup-front-chain.png",
        "regroup-convergence.png",
        "regroup-calibration.png",
        "regroup-lar-by-layer.png",
    }
    rows = session.result.samples["gpt-oss-20b, 4 devices"]
    assert isinstance(rows, list)
    assert len(rows[0]["by_layer"]["lar_token"]) == LAYERS
    written = session.result.write(session.out)
    assert json.loads(written.read_text())["summary"][0]["figure"] == session.result.summary[0].figure


def test_deepseek_figures_name_every_baseline(session: Session, folder: Path) -> None:
    deepseek.run(session, cut(data.deepseek(folder)))
    figures = {figure.figure: figure for figure in session.result.summary}
    needed = figures["DeepSeek-V2-Lite: devices that a token needs, 4 devices, free load"]
    assert needed.value is not None
    assert 1 <= needed.value <= 4
    assert "contiguous" in (needed.bound or "")
    assert "metis" in (needed.bound or "")


def test_small_instances_meet_the_optimum(session: Session, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small, "ROWS", 8)
    monkeypatch.setattr(small, "QUICK_COUNTS", (2, 1))
    small.run(session, data.gpt_oss(folder))
    assert [figure.met for figure in session.result.summary] == [True, True]


def test_excess_sees_a_placement_that_is_not_the_best() -> None:
    chance = np.random.default_rng(3)
    worst = max(small.excess((small.drawn(chance), FREE), "contiguous") for _ in range(2))
    assert worst > small.LIMIT


def test_scale_measures_and_fits_growth(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    def solve(size: scale.Size, balance: object) -> scale.Measured:
        return scale.Measured(size.tokens * size.experts**2 / 1e6, 1.0, 10**9)

    monkeypatch.setattr(scale, "solve", solve)
    scale.run(session)
    figures = {figure.figure: figure for figure in session.result.summary}
    assert figures["scale: solving time grows with tokens to the power"].value == pytest.approx(1.0)
    assert figures["scale: solving time grows with experts to the power"].value == pytest.approx(2.0)
    assert figures["scale: peak memory of a worker"].value == 1.0


def test_a_made_up_layer_is_solved_and_is_the_same_again() -> None:
    size = scale.Size(tokens=2000, experts=16, devices=4, vocab=500)
    trace = scale.made_up(size)
    trace.validate()
    assert trace.expert_ids.tobytes() == scale.made_up(size).expert_ids.tobytes()
    assert scale.made_up(scale.Size(tokens=2000, experts=16, vocab=500, layer=1)).expert_ids.shape == (1, 2000, 6)
    assert scale.solve(size, HELD).peak_rss_bytes > 0


def test_the_built_in_model_is_recorded_by_domain() -> None:
    trace, embedding = builtin_part.record(1)
    trace.validate()
    assert trace.labels == builtin_part.DOMAINS
    assert trace.num_tokens == 4 * 256
    assert embedding.shape[0] > int(trace.token_ids.max())


def test_parts_run_in_turn_and_say_so(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[str] = []
    for name, module in (("small", small), ("scale", scale), ("gpt-oss", gpt_oss)):
        monkeypatch.setattr(module, "run", lambda session, *rest, name=name: ran.append(name))
    result = regroup_run.run(quick=True, out=tmp_path, data=folder, parts=("small", "scale", "gpt-oss"))
    assert ran == ["gpt-oss", "small", "scale"]
    assert result.name == "regroup-quick"
    assert "regroup" in capsys.readouterr().err


def _names() -> Iterator[str]:
    yield from (name for name, _ in gpt_oss.entries(quick=False))


def test_every_baseline_is_in_the_contest() -> None:
    names = set(_names())
    assert {"contiguous", "random", "eplb", "inter-layer", "metis", "kmeans", "alternating", "cross-entropy"} <= names
