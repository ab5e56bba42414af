"""`smoe bench offload`: bound arithmetic, turns with fake contenders, figures, limits, processes."""

import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

import smoe
from smoe.bench.offload import peers
from smoe.bench.offload import run as offload_run
from smoe.bench.offload.bound import Bound, Round, hidden, shares, speedups, tokens_per_s
from smoe.bench.offload.limit import MemoryLimit, drop_page_cache
from smoe.bench.offload.link import expert_places
from smoe.bench.offload.measure import Capacity, decode, in_turn, measure
from smoe.bench.offload.peers import Peer, Setting
from smoe.bench.offload.plot import plot
from smoe.bench.offload.predict import curve, prediction_figures
from smoe.bench.offload.process import ContenderError, Process
from smoe.bench.offload.report import GOAL_RSS_BYTES, capacity_figures, link_figure, sample_rows
from smoe.bench.offload.sample import Sample
from smoe.bench.offload.worker import Message
from smoe.core.stats import ExpertStats
from smoe.models.inflate import inflate
from smoe.models.loading import open_checkpoint
from smoe.offload.policies.spec import parse_policies

MB = 10**6


def sample(
    step_s: float, moved: int = 0, *, wait_s: float = 0.0, transfer_s: float = 0.0, tokens: Sequence[int] = ()
) -> Sample:
    """Two decode steps of `step_s`, `moved` bytes in both together."""
    stats = ExpertStats(hits=6, cold_misses=2, bytes_moved=moved, wait_s=wait_s, transfer_s=transfer_s)
    return Sample(ttft_s=1.0, step_s=[step_s, step_s], experts=stats, token_ids=list(tokens), peak_rss_bytes=1500 * MB)


def test_bound_is_arithmetic_or_link_whichever_is_longer() -> None:
    bound = Bound(compute_s=0.05, link_bytes_per_s=2e9)
    assert bound.step_s(0) == 0.05
    assert not bound.is_link(0)
    assert bound.step_s(400 * MB) == pytest.approx(0.2)
    assert bound.is_link(400 * MB)


def test_share_is_of_the_mean_step_and_hidden_of_the_transfer_time() -> None:
    bound = Bound(compute_s=0.05, link_bytes_per_s=2e9)
    found = sample(0.25, 800 * MB, wait_s=0.1)
    assert bound.share(found) == pytest.approx(0.8)
    assert bound.hidden_share(found) == pytest.approx(0.75)
    assert bound.hidden_share(sample(0.25)) is None
    assert bound.hidden_share(sample(0.25, 2 * MB, wait_s=9.0)) == 0.0


def test_speedups_are_paired_by_turn() -> None:
    bound = Bound(0.01, 1e9)
    rounds = [
        Round(bound=bound, samples={"a": sample(0.2), "b": sample(0.1)}),
        Round(bound=bound, samples={"a": sample(0.8), "b": sample(0.2)}),
    ]
    assert speedups(rounds, "b", "a") == pytest.approx([2.0, 4.0])
    assert tokens_per_s(rounds, "a") == pytest.approx([5.0, 1.25])
    assert shares(rounds, "b") == pytest.approx([0.1, 0.05])
    assert hidden(rounds, "a") is None


def test_a_sample_crosses_processes_unchanged() -> None:
    found = sample(0.1, 5, tokens=[1, 2])
    assert Sample.from_json(json.loads(json.dumps(found.to_json()))) == found


class Fake:
    """Decodes in `step_s`, token ids being the prompt's unless `wrong`."""

    def __init__(self, name: str, log: list[str], step_s: float = 0.2, *, wrong: bool = False) -> None:
        self._name, self._log, self._step_s, self._wrong = name, log, step_s, wrong

    def ask(self, message: Message) -> Message:
        self._log.append(f"{self._name} {message['op']}")
        if message["op"] == "open":
            return {"budget_bytes": 1200 * MB}
        ids = [0] if self._wrong else message["prompt"]
        return sample(self._step_s, 400 * MB, wait_s=0.05, transfer_s=0.25, tokens=ids).to_json()


def measured(log: list[str], *, wrong: bool = False, percent: float = 25) -> Capacity:
    contenders = {"evict=lru": Fake("lru", log), "evict=fifo": Fake("fifo", log, 0.125, wrong=wrong)}
    return measure(
        percent,
        contenders,
        Fake("resident", log, 0.05),
        lambda: 2e9,
        [(1, 2), (3, 4)],
        tokens=3,
        cold_repeats=1,
        repeats=2,
    )


def test_contenders_change_places_and_each_turn_has_its_own_bound() -> None:
    log: list[str] = []
    found = measured(log)
    assert log[:4] == ["lru open", "lru decode", "fifo open", "fifo decode"]
    assert log[4:] == [f"{name} decode" for name in ("resident", "lru", "fifo", "resident", "fifo", "lru")]
    assert [r.bound for r in found.rounds] == [Bound(0.05, 2e9)] * 2
    assert [name for name, _ in in_turn({"a": 1, "b": 2}, 1)] == ["b", "a"]  # type: ignore[dict-item]


def test_figures_say_bound_goal_and_whether_the_answers_are_the_same() -> None:
    found = measured([], wrong=True)
    figures = {f.figure: f for f in capacity_figures(found, "evict=lru", "evict=fifo", lossy=False)}
    share = figures["25 % evict=lru: share of the bound"]
    assert (share.value, share.met) == (pytest.approx(50.0), False)
    assert figures["25 % evict=fifo: share of the bound"].value == pytest.approx(80.0)
    assert figures["25 %: speed of evict=fifo over evict=lru"].value == pytest.approx(1.6)
    assert figures["25 % evict=lru: answers equal those of the resident model"].met is True
    assert figures["25 % evict=fifo: answers equal those of the resident model"].met is False
    assert figures["25 % evict=lru: transfer time hidden behind arithmetic"].value == pytest.approx(75.0)
    memory = figures["25 % evict=lru: peak RSS above the experts' budget"]
    assert (memory.value, memory.met) == (pytest.approx(300.0), True)


def test_a_lossy_policy_is_not_asked_for_the_same_answers() -> None:
    figures = [f.figure for f in capacity_figures(measured([]), "evict=lru", "evict=fifo", lossy=True)]
    assert sum("answers equal" in name for name in figures) == 1


def test_link_rate_counts_only_the_time_in_which_something_is_transferred() -> None:
    figure = link_figure(measured([]), "evict=lru")
    assert figure.value == pytest.approx(100 * 400 * MB / 0.25 / 2e9)
    assert figure.met is False


def test_link_has_no_goal_where_arithmetic_bounds_the_step() -> None:
    found = measured([])
    found.rounds = [Round(bound=Bound(5.0, 2e9), samples=r.samples) for r in found.rounds]
    assert link_figure(found, "evict=lru").met is None


def test_goals_hold_at_a_quarter_only() -> None:
    figures = capacity_figures(measured([], percent=50), "evict=lru", "evict=fifo", lossy=False)
    assert not any("peak RSS" in f.figure for f in figures)
    assert all(f.met is None for f in figures if "share of the bound" in f.figure)


def test_prediction_stands_beside_the_measurement_and_in_the_picture(tmp_path: Path) -> None:
    found = [measured([], percent=percent) for percent in (10, 50)]
    predicted = {"evict=lru": curve(found, parse_policies("evict=lru"), 12 * MB, 0.9)}
    first, second = prediction_figures(found, predicted)
    assert first.figure == "10 % evict=lru: predicted over measured"
    assert first.value is not None
    assert first.value == pytest.approx(predicted["evict=lru"][0][1] / 5)
    assert predicted["evict=lru"][0][1] < predicted["evict=lru"][1][1]
    assert second.value is not None
    assert plot(found, predicted, tmp_path / "a" / "b.png").stat().st_size > 10_000
    json.dumps(sample_rows(found))


def test_peers_are_ratios_with_their_goal_or_the_reason_why_not() -> None:
    own = Peer(samples=[sample(0.1)], limited=True)
    slow, missing = Peer(samples=[sample(2.0)], limited=True), Peer(reason="not installed: x")
    figures = peers.figures(own, {"slow": slow, "missing": missing}, 1_500_000_000, 25)
    assert [f.value for f in figures] == [pytest.approx(10.0), pytest.approx(20.0), None]
    assert [f.met for f in figures] == [None, True, None]
    assert "2000 ms a token" in (figures[1].bound or "")
    assert figures[2].bound == "not installed: x"
    unlimited = peers.figures(Peer(samples=[sample(0.1)], reason="no group"), {}, 1, 25)
    assert "no limit (no group)" in unlimited[0].figure


def test_memory_limit_writes_the_bound_and_removes_the_group(tmp_path: Path) -> None:
    (tmp_path / "memory.limit_in_bytes").write_text("0")
    limit = MemoryLimit(1000, root=tmp_path)
    assert limit.folder is not None
    assert (limit.folder / "memory.limit_in_bytes").read_text() == "1000"


def test_memory_limit_says_why_there_is_none(tmp_path: Path) -> None:
    with MemoryLimit(1000, root=tmp_path) as limit:
        assert limit.folder is None
        assert "no memory control group" in limit.reason
        assert limit.peak_bytes is None


def test_dropping_the_page_cache_leaves_the_file(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x" * 10_000)
    drop_page_cache([path])
    assert path.read_bytes() == b"x" * 10_000


def test_expert_places_are_whole_pieces(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(bytes(4096 * 5 + 1))
    assert expert_places([path], 8192) == [(path, 0), (path, 8192)]


WORKER = """
from smoe.bench.offload.worker import serve
def handle(message):
    print("noise")
    if message["op"] == "fail":
        raise ValueError("no such thing")
    if message["op"] == "die":
        import os; os._exit(3)
    if message["op"] == "where":
        import smoe
        return {"smoe": smoe.__file__}
    return {"twice": 2 * message["n"]}
serve(handle)
"""


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "bench_worker.py").write_text(WORKER)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, sys.path)]))
    return "bench_worker"


def test_a_contender_answers_line_by_line_whatever_else_it_prints(worker: str) -> None:
    with Process(worker) as process:
        assert process.ask({"op": "add", "n": 2}) == {"twice": 4}
        assert process.ask({"op": "add", "n": 5}) == {"twice": 10}


def test_a_failing_contender_says_why(worker: str) -> None:
    with Process(worker) as process, pytest.raises(ContenderError, match="ValueError: no such thing"):
        process.ask({"op": "fail"})


def test_a_dead_contender_is_an_error_and_not_a_hang(worker: str) -> None:
    with Process(worker) as process, pytest.raises(ContenderError, match="bench_worker: ended with 3"):
        process.ask({"op": "die"})


def test_a_contender_runs_the_same_sources_wherever_it_is_started(
    worker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere" / "smoe").mkdir(parents=True)
    (tmp_path / "elsewhere" / "smoe" / "__init__.py").write_text("raise ImportError('another smoe')")
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "elsewhere"), os.environ["PYTHONPATH"]]))
    with Process(worker) as process:
        assert process.ask({"op": "where"}) == {"smoe": smoe.__file__}


SETTING = Setting(folder=Path("model"), scratch=Path("s"), limit_bytes=1, prompts=[(1, 2)], tokens=3, threads=1)


def test_a_peer_that_raises_anything_keeps_what_it_did_and_says_why() -> None:
    peer = Peer()

    def turn(setting: Setting, peer: Peer) -> None:
        peer.samples.append(sample(0.5))
        raise ZeroDivisionError("a message\n  of two lines")

    peers.take_turn(SETTING, peer, turn)
    assert peer.tokens_per_s == pytest.approx(2.0)
    assert peer.reason == "ZeroDivisionError: a message of two lines"
    [_, figure] = peers.figures(Peer(samples=[sample(0.1)]), {"peer": peer}, 1, 25)
    assert figure.value == pytest.approx(5.0)
    assert (figure.bound or "").endswith("a message of two lines")


@pytest.fixture
def _no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """The benchmark around its parts: a disk, a model and prompts that are not there."""

    class FakeLink:
        rates, threads, typical = {1: [2e9]}, 1, 2e9

        def rate(self) -> float:
            return 2e9

    monkeypatch.setattr(offload_run, "inflated_folder", lambda cache: cache)
    monkeypatch.setattr(offload_run, "_prompts", lambda folder, count: [(1, 2)] * count)
    monkeypatch.setattr(offload_run, "_sizes", lambda folder: (12 * MB, 0.9))
    monkeypatch.setattr(offload_run, "Link", lambda *_, **__: FakeLink())


@contextmanager
def contender(folder: Path, memory: str, policies: str | None) -> Iterator[Fake]:
    """Dies at a quarter resident."""
    if memory == "25%":
        raise ContenderError("smoe.bench.offload.own: killed")
    yield Fake(memory, [])


@pytest.mark.usefixtures("_no_model")
def test_what_was_measured_is_written_whatever_comes_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[list[str]] = []

    def stopped(setting: Setting, peer: Peer) -> None:
        body = json.loads((tmp_path / "offload-quick.json").read_text())
        written.append([row["figure"] for row in body["summary"]])
        assert len(body["samples"]["capacities"]) == 2
        assert body["samples"]["peers"]["smoe"]["reason"] == "OSError: no space left"
        raise KeyboardInterrupt

    def failing(setting: Setting, peer: Peer, config: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(offload_run, "_own", contender)
    monkeypatch.setattr(peers, "run_own", failing)
    monkeypatch.setattr(peers, "run_accelerate", stopped)
    with pytest.raises(KeyboardInterrupt):
        offload_run.run(quick=True, cache=tmp_path, out=tmp_path)
    [figures] = written
    assert "10 % evict=lru: warm decode" in figures
    assert "50 % evict=lru: warm decode" in figures
    assert "25 %" in figures


@pytest.mark.usefixtures("_no_model")
def test_a_capacity_that_fails_is_a_row_that_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offload_run, "_own", contender)
    result = offload_run.run(quick=True, cache=tmp_path, out=tmp_path, with_peers=False)
    [row] = [figure for figure in result.summary if figure.figure == "25 %"]
    assert (row.value, row.met, row.bound) == (None, False, "smoe.bench.offload.own: killed")
    assert (tmp_path / "offload-quick.png").exists()


@pytest.fixture
def larger_model(tmp_path: Path) -> Iterator[Path]:
    """300 MB of experts, which would not fit beside a process within the allowance."""
    folder = tmp_path / "larger"
    inflate(open_checkpoint("builtin"), folder, hidden=512, expert_ffn=256, dtype="bfloat16")
    yield folder
    shutil.rmtree(folder)


def test_a_contender_stays_within_its_budget_and_the_fixed_allowance(larger_model: Path) -> None:
    config = offload_run.own_config(larger_model, "10%", "evict=lru")
    experts = sum(path.stat().st_size for path in larger_model.glob("*.safetensors"))
    with Process("smoe.bench.offload.own", [json.dumps(config)]) as process:
        budget = int(process.ask({"op": "open"})["budget_bytes"])
        found = decode(process, range(2, 26), 8)
    assert 0.09 * experts < budget < 0.11 * experts
    assert found.experts.bytes_moved > budget
    assert budget < found.peak_rss_bytes < budget + GOAL_RSS_BYTES
