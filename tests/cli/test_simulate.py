"""`smoe simulate` and the verbs of `smoe trace` that make files."""

import json
import math
from pathlib import Path

import pytest

from smoe.core.route_trace import read_route_trace, write_route_trace
from smoe.workload.routes import synthetic_routes


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "routes.safetensors"
    write_route_trace(path, synthetic_routes(num_layers=3, num_experts=12, top_k=3, tokens=60, sequences=4, prompt=3))
    return path


def test_a_sweep_in_this_process(smoe, trace: Path) -> None:  # type: ignore[no-untyped-def]
    policies = ("--expert-policy", "evict=lru", "--expert-policy", "evict=belady")
    result = smoe(
        *(
            "simulate",
            "--trace",
            str(trace),
            "--in-process",
            "--json",
            "--expert-memory",
            "4",
            "--expert-memory",
            "50%",
        ),
        *policies,
        *("--link", "2GB/s+0.1ms", "--compute", "0.3ms+50us", "--expert-bytes", "12MB"),
    )
    assert result.code == 0, result.err
    found = json.loads(result.out)
    asked = [(p, c) for p in ("lru", "belady") for c in ("4", "50%")]
    assert [(r["policy"].split(",")[0].removeprefix("evict="), r["capacity"]) for r in found] == asked
    for each in found:
        assert each["accesses"] == each["experts"]["hits"] + each["experts"]["cold_misses"]
        assert each["seconds"] > 0
    assert found[2]["hit_rate"] >= found[0]["hit_rate"]
    assert "simulations: 4 of 4" in result.err


def test_the_table_shows_every_figure_whole(smoe, trace: Path) -> None:  # type: ignore[no-untyped-def]
    result = smoe("simulate", "--trace", str(trace), "--expert-memory", "4")
    assert result.code == 0
    assert "…" not in result.out
    assert "ms/token" not in result.out
    assert "evict=lru" in result.out


def test_prefetching_pauses_itself_when_told(smoe, trace: Path) -> None:  # type: ignore[no-untyped-def]
    asked = ("simulate", "--trace", str(trace), "--json", "--expert-memory", "4")
    wasteful = ("--expert-policy", "evict=fifo,prefetch=oracle:accuracy=0")
    never, soon = smoe(*asked, *wasteful), smoe(*asked, *wasteful, "--pause-share", "0.1")
    [freely], [paused] = json.loads(never.out), json.loads(soon.out)
    assert freely["experts"]["prefetch_pauses"] == 0 < paused["experts"]["prefetch_pauses"]
    assert paused["experts"]["prefetched"] < freely["experts"]["prefetched"]
    for arguments, error in (
        ((*wasteful, "--pause-share", "2"), "pause_share: 2.0 (0 to 1)"),
        ((*wasteful, "--pause-share", "nan"), "pause_share: nan (0 to 1)"),
        (("--pause-share", "0.5"), "pause_share: 0.5 (has no effect without a policy that prefetches)"),
    ):
        refused = smoe(*asked, *arguments)
        assert refused.code == 2
        assert error in refused.err


def test_the_table_shows_what_is_computed_in_place_and_no_defaults(smoe, trace: Path) -> None:  # type: ignore[no-untyped-def]
    asked = ("evict=lru", "evict=lru,miss=cpu", "evict=lru,miss=auto,admit=always")
    policies = [word for policy in asked for word in ("--expert-policy", policy)]
    link = ("--link", "1MB/s", "--compute", "1ms+1us+1us", "--expert-bytes", "1MB")
    result = smoe("simulate", "--trace", str(trace), "--in-process", "--expert-memory", "4", *policies, *link)
    assert result.code == 0, result.err
    shown = [line.split("│")[1].strip() for line in result.out.splitlines() if "evict=" in line]
    assert shown == ["evict=lru", "evict=lru,miss=compute", "evict=lru,miss=auto,admit=always"]
    assert "in place" in result.out
    assert "…" not in result.out


DRAFT = ("--draft", "int4", "--draft-tokens", "4", "--draft-acceptance", "0.9", "--mode", "decode")


def test_a_draft_in_a_sweep(smoe, trace: Path) -> None:  # type: ignore[no-untyped-def]
    asked = ("simulate", "--trace", str(trace), "--in-process", "--expert-memory", "75%", "--expert-memory", "9")
    link = ("--link", "2GB/s", "--expert-bytes", "12MB", "--compute", "0.3ms+50us")
    more = ("--draft-recall", "0.8", "--draft-step", "5ms", "--draft-prefetch", "late", "--draft-group-size", "32")
    result = smoe(*asked, *link, *DRAFT, *more, "--json")
    assert result.code == 0, result.err
    found = json.loads(result.out)
    taken = math.ceil((4 + 16 / 32) / 16 * 3 * 12)
    for each in found:
        assert each["num_slots"] == 27 - taken
        assert each["draft"]["kept"] / each["draft"]["drafted"] > 0.7
        assert each["draft"]["foretold"] < each["draft"]["asked"]
        assert each["draft"]["draft_s"] == pytest.approx(0.005 * each["draft"]["drafted"])
    sure = smoe(*asked[:-2], *link, *DRAFT, "--json")
    [known] = json.loads(sure.out)
    share = [each["draft"]["foretold"] / each["draft"]["asked"] for each in (found[0], known)]
    assert 0 < share[0] < share[1] < 1, "not even a draft that is right has a row for a window's last token"
    shown = smoe(*asked, *link, *DRAFT)
    assert "tokens/window" in shown.out
    assert "acceptance and recall, not measured" in shown.out
    assert "…" not in shown.out


def test_a_draft_that_looks_up_takes_no_memory(smoe, trace: Path) -> None:  # type: ignore[no-untyped-def]
    asked = ("simulate", "--trace", str(trace), "--json", "--expert-memory", "4", "--draft-acceptance", "0")
    plain, drafted = smoe(*asked[:-2]), smoe(*asked, "--draft", "ngram")
    [alone], [ngram] = json.loads(plain.out), json.loads(drafted.out)
    assert ngram["num_slots"] == alone["num_slots"]
    assert ngram["experts"]["prefetched"] == 0 == ngram["draft"]["kept"]
    assert ngram["forwards"] == alone["forwards"], "nothing kept: as many forwards"
    assert ngram["transfers"] > alone["transfers"], "for rows that are of no use"


@pytest.mark.ray
def test_a_sweep_over_ray_is_the_sweep_here(smoe, trace: Path) -> None:  # type: ignore[no-untyped-def]
    arguments = ("simulate", "--trace", str(trace), "--json", "--expert-memory", "2", "--expert-memory", "4")
    arguments += ("--expert-policy", "evict=random", "--expert-policy", "evict=lru,prefetch=follow")
    over_ray, here = smoe(*arguments, "--jobs", "2"), smoe(*arguments, "--in-process")
    assert over_ray.code == here.code == 0, over_ray.err
    assert json.loads(over_ray.out) == json.loads(here.out)


REFUSED = [
    (("--expert-memory", "0"), r"expert_memory: '0' \(above zero"),
    (("--expert-memory", "1kB"), r"expert_bytes: None \(the size of one expert"),
    (("--expert-memory", "1kB", "--expert-bytes", "1MB"), r"expert_memory: '1000 bytes' \(at least one expert a layer"),
    (("--expert-memory", "auto"), r"expert_memory: 'auto' \(slots a layer"),
    (("--link", "3"), r"link: '3' \(bandwidth"),
    (("--link", "1GB/s"), r"expert_bytes: None"),
    (("--compute", "1ms+1us"), r"compute: '1ms\+1us' \(has no effect without --link\)"),
    (("--link", "1GB/s", "--expert-bytes", "1MB", "--compute", "1ms"), r"compute: '1ms' \(seconds a layer"),
    (("--expert-bytes", "many"), r"expert_bytes: 'many' \(bytes"),
    (("--pool", "x"), r"pool: 'x' \(one of layer, shared\)"),
    (("--mode", "x"), r"mode: 'x' \(one of recorded, decode, prefill\)"),
    (("--batch", "0"), r"batch: 0 \(integer >= 1\)"),
    (("--jobs", "0"), r"jobs: 0 \(integer >= 1\)"),
    (("--jobs", "2", "--in-process"), r"jobs: 2 \(not with --in-process"),
    (("--seed", "-1"), r"seed: -1 \(integer >= 0\)"),
    (("--draft", "int8"), r"draft: 'int8' \(int4 or ngram\)"),
    (("--draft", "int4"), r"draft_acceptance: None \(with --draft, a share"),
    (("--draft-tokens", "4"), r"draft_tokens: '4' \(has no effect without --draft\)"),
    (("--draft-recall", "1"), r"draft_recall: '1' \(has no effect without --draft\)"),
    (("--draft", "ngram", "--draft-acceptance", "1", "--draft-recall", "1"), r"draft_recall: '1' .* --draft int4\)"),
    ((*DRAFT, "--draft-tokens", "65"), r"draft_tokens: 65 \(integer from 1 to 64\)"),
    ((*DRAFT, "--draft-acceptance", "1.5"), r"draft_acceptance: 1.5 \(a share from 0 to 1\)"),
    ((*DRAFT, "--draft-acceptance", "nan"), r"draft_acceptance: nan \(a share from 0 to 1\)"),
    ((*DRAFT, "--draft-recall", "-0.1"), r"draft_recall: -0.1 \(a share from 0 to 1\)"),
    ((*DRAFT, "--draft-step", "5ms"), r"draft_step: '5ms' \(has no effect without --link\)"),
    ((*DRAFT, "--draft-prefetch", "soon"), r"draft_prefetch: 'soon' \(one of adaptive"),
    ((*DRAFT, "--draft-group-size", "7"), r"draft_group_size: 7 \(one of 32, 64, 128\)"),
    ((*DRAFT, "--batch", "2"), r"draft: 4 \(one sequence at a time"),
    ((*DRAFT, "--expert-memory", "10%"), r"draft_bytes_share: 0.26"),
    (("--expert-policy", "evict=lruu"), r"policies.evict: 'lruu' \(one of random, fifo"),
    (("--expert-policy", "prefetch=gate"), r"policies.prefetch: 'gate' \(the trace has no lookahead_logits"),
    (("--expert-policy", "prefetch=gate:threshold=nan"), r"threshold: 'nan'"),
    (
        ("--expert-policy", "evict=lru", "--expert-policy", "miss=substitute"),
        r"policies.miss: 'substitute' \(the trace",
    ),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED)
@pytest.mark.usefixtures("nothing_starts")
def test_bad_input_is_one_line(smoe, trace: Path, arguments: tuple[str, ...], message: str) -> None:  # type: ignore[no-untyped-def]
    import re

    result = smoe("simulate", "--trace", str(trace), *arguments)
    assert result.code == 2
    assert re.search(message, result.err), result.err
    assert len(result.err.strip().splitlines()) == 1
    assert result.out == ""


def test_traces_that_are_broken_are_named(smoe, trace: Path) -> None:  # type: ignore[no-untyped-def]
    result = smoe("simulate", "--trace", "no-such-trace")
    assert result.code == 2
    assert "no-such-trace: no such file" in result.err
    trace.write_bytes(trace.read_bytes()[:-7])
    result = smoe("simulate", "--trace", str(trace))
    assert result.code == 2
    assert str(trace) in result.err.replace("\n", "")


def test_split_and_merge(smoe, trace: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    one, two, both = (tmp_path / f"{name}.safetensors.gz" for name in ("one", "two", "both"))
    result = smoe("trace", "split", str(trace), "--fraction", "0.5", "--out", str(one), "--rest", str(two))
    assert result.code == 0, result.err
    assert smoe("trace", "merge", str(one), str(two), "--out", str(both)).code == 0
    assert read_route_trace(both).num_tokens == read_route_trace(trace).num_tokens
    for arguments, message in (
        (("split", str(trace), "--fraction", "1.5", "--out", str(one), "--rest", str(two)), "fraction: 1.5"),
        (("split", str(trace), "--fraction", "0.5", "--out", str(one), "--rest", str(one)), "rest:"),
        (("merge", str(one), "--out", str(both)), "files: 1"),
        (("import", str(trace), "--out", str(one)), str(trace)),
        (("import", str(trace), "--out", str(one), "--incomplete", "x"), "incomplete: 'x'"),
        (("import", str(trace), "--out", str(one), "--max-sequence", "3"), "max_sequence: 3"),
    ):
        result = smoe("trace", *arguments)
        assert result.code == 2
        assert message in result.err, result.err
