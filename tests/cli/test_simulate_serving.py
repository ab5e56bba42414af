"""`smoe simulate serving` and `smoe profile steps`."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from smoe.bench.slo.front_profile import Loops
from smoe.bench.slo.step_profile import Grid
from smoe.sim.serving.fitted import StepProfile
from smoe.sim.serving.front import ClosedLoop, Pair

BOX = ("--topology", "8xh100-pcie", "--model-shape", "mixtral-8x7b")
FEW = ("--num-requests", "20", "--min-duration", "0")


def serving(smoe, *arguments: str):  # type: ignore[no-untyped-def]
    return smoe("simulate", "serving", *arguments)


@pytest.mark.usefixtures("nothing_starts")
def test_a_search_over_schedules(smoe, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    schedules = ("--schedule", "allreduce,speculative", "--lar", "0.5")
    goals = ("--goodput", "ttft:40", "tpot:8", "tbt_p90:40")
    result = serving(smoe, *BOX, *schedules, *FEW, *goals, "--out", str(tmp_path))
    assert result.code == 0, result.err
    lines = [line for line in result.out.splitlines() if "highest rate" in line]
    assert all(line.startswith("simulated: highest rate with 99 % within ttft:40 tpot:8 tbt_p90:40") for line in lines)
    allreduce, speculative = (float(re.search(r": ([\d.]+) requests/s", line)[1]) for line in lines)  # type: ignore[index]
    assert 0 < allreduce < speculative
    assert result.out.startswith("simulated, not measured: 20 requests of made-up lengths, poisson, seed 0")
    body = json.loads((tmp_path / "serving-simulated.json").read_text())
    assert body["config"]["simulated"] is True
    assert {point["engine"] for point in body["samples"]["points"]} == {"allreduce", "speculative"}
    assert all(point["simulated"] for point in body["samples"]["points"])
    assert (tmp_path / "serving-simulated.png").stat().st_size > 10_000


@pytest.mark.usefixtures("nothing_starts")
def test_a_sweep_with_experts_that_are_moved(smoe) -> None:  # type: ignore[no-untyped-def]
    hardware = ("--trace", "builtin", "--link", "2GB/s", "--compute", "0.3ms+1ms", "--expert-memory", "50%")
    policies = ("--expert-policy", "evict=lru", "--expert-policy", "evict=random")
    lengths = ("--input-len", "8", "--output-len", "4", "--num-requests", "5", "--min-duration", "0")
    result = serving(smoe, *hardware, *policies, "--rates", "2,1", *lengths, "--json")
    assert result.code == 0, result.err
    points = json.loads(result.out)
    assert [(p["engine"], p["request_rate"]) for p in points] == [
        (f"50%, {policy}", rate) for policy in ("evict=lru", "evict=random") for rate in (1.0, 2.0)
    ]
    assert all(p["simulated"] and p["completed"] == 5 and p["total_output_tokens"] == 20 for p in points)


def test_steps_measured_here_serve_there(smoe, tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    few = Grid(batches=(1, 2, 4), contexts=(8, 40), prompts=(6, 20), decodes=3, repeats=1)
    monkeypatch.setattr("smoe.bench.slo.step_profile.QUICK", few)
    monkeypatch.setattr("smoe.bench.slo.front_profile.QUICK_LOOPS", Loops(streams=(1, 2), tokens=3, repeats=1))
    path = tmp_path / "steps.json"
    measured = smoe("profile", "steps", "--quick", "--front", "--out", str(path))
    assert measured.code == 0, measured.err
    assert re.search(r"\d us a request, over HTTP", measured.out)
    assert re.search(r"error on a quarter of \d+ steps, not fitted to: median \d+ %", measured.out)
    slow = tuple(
        ClosedLoop(streams=n, token_s=Pair(over=1.0 + n, straight=n), request_s=Pair(over=3.0, straight=1.0))
        for n in (1, 2)
    )
    replace(StepProfile.read(path), front=slow).write(path)
    result = serving(smoe, "--step-profile", str(path), *FEW, "--rates", "0.5", "--json")
    assert result.code == 0, result.err
    alone, fronted = json.loads(result.out)
    assert (alone["engine"], alone["completed"]) == ("builtin", 20)
    assert (fronted["engine"], fronted["completed"]) == ("builtin over HTTP", 20)
    assert 0 < alone["mean_ttft_ms"] < 1000 < fronted["mean_ttft_ms"]


REFUSED = [
    ((), r"hardware: 'none' \(one of --step-profile"),
    ((*BOX, "--trace", "builtin"), r"hardware: 'trace, topology' \(one of"),
    ((*BOX, "--link", "1GB/s"), r"link: '1GB/s' \(has no effect without --trace"),
    ((*BOX, "--kv-rows", "10"), r"kv_rows: '10' \(not with --topology"),
    ((*BOX, "--schedule", "speculative"), r"schedule: 'speculative' \(--lar with it"),
    ((*BOX, "--lar", "0.3"), r"lar: 0.3 \(has no effect without --schedule speculative"),
    ((*BOX, "--schedule", "gossip"), r"schedule: 'gossip' \(one of allreduce, scatter, speculative"),
    ((*BOX, "--imbalance", "0.5"), r"imbalance: 0.5 \(1 or more"),
    (("--topology", "8xh100-pcie"), r"topology: '8xh100-pcie' \(--model-shape with it"),
    (("--topology", "8gpu-nvswitch", *BOX[2:]), r"topology: '8gpu-nvswitch' \(a topology with a `device` section"),
    (("--topology", "8xh100-pcie", "--model-shape", "x"), r"model_shape: 'x' \(a config.json"),
    (("--trace", "builtin"), r"trace: 'builtin' \(--link and --compute with it"),
    (("--model-shape", "mixtral-8x7b", "--step-profile", "p"), r"model_shape: 'mixtral-8x7b' \(has no effect without"),
    (("--step-profile", "no-such-file"), r"step_profile: 'no-such-file' \(a profile of steps"),
    ((*BOX, "--rates", "1", "--tolerance", "0.1"), r"tolerance: '0.1' \(has no effect without --rates auto"),
    ((*BOX, "--min-duration", "-1"), r"min_duration: '-1' \(seconds, 0 or more"),
    ((*BOX, "--rates", "0"), r"rates: '0' \(a number above 0"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED)
@pytest.mark.usefixtures("nothing_starts")
def test_bad_input_is_one_line(smoe, arguments: tuple[str, ...], message: str) -> None:  # type: ignore[no-untyped-def]
    goal = () if "--rates" in arguments else ("--goodput", "ttft:500")
    result = serving(smoe, *arguments, *goal)
    assert result.code == 2
    assert re.search(message, result.err), result.err
    assert len(result.err.strip().splitlines()) == 1


def test_no_rates_and_no_objectives(smoe) -> None:  # type: ignore[no-untyped-def]
    result = serving(smoe, *BOX)
    assert result.code == 2
    assert "rates: 'auto' (needs --goodput, or rates to sweep" in result.err
