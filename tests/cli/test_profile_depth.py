"""`smoe profile depth` keeps the depth with the least time a token, and --draft-tokens auto takes it."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from smoe.core.draft import MAX_TOKENS, DraftConfig
from smoe.engine.draft.known_depth import keep_depth, known_depth
from smoe.engine.draft.measure_depth import candidates

QUICK = ("--threads", "1", "--max-tokens", "3", "--repeats", "1", "--json")


def test_candidates_go_up_to_the_expected_run() -> None:
    assert [candidates(p) for p in (0.0, 0.5, 0.7, 0.9)] == [(1,), (1,), (1, 2), (1, 2, 4, 6, 8)]
    assert candidates(0.9663)[-1] == 24
    assert candidates(0.98)[-1] == 48
    assert candidates(1.0)[-1] == MAX_TOKENS


@pytest.mark.parametrize("draft", ["int4", "ngram"])
def test_the_best_depth_is_kept(smoe: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, draft: str) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    memory = ("--expert-memory", "40%") if draft == "int4" else ()
    result = smoe("profile", "depth", "--draft", draft, *memory, *QUICK)
    assert result.code == 0, result.err
    record = json.loads(result.out)
    depths = {each["depth"]: each for each in record["depths"]}
    assert record["tokens"] == min((d for d in depths if d), key=lambda depth: depths[depth]["mean_ms"])
    assert {len(each["tpot_ms"]) for each in depths.values()} == {5}
    assert depths[0]["drafted"] == 0
    assert known_depth(DraftConfig(model=draft), record["model"]) == record["tokens"]


def test_a_depth_is_kept_for_what_it_was_measured_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    whole = DraftConfig(model="int4")
    others = [replace(whole, residual=True), replace(whole, group_size=32), DraftConfig(model="ngram")]
    keep_depth(whole, "some model", {"tokens": 5})
    assert known_depth(whole, "some model") == 5
    assert [known_depth(other, "some model") for other in others] == [None] * 3
    assert known_depth(whole, "another model") is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--repeats", "0"), r"repeats: '0' \(integer >= 1\)"),
        (("--max-tokens", "1"), r"max_tokens: '1' \(integer >= 2\)"),
        (("--draft", ""), r"draft: '' \(int4, ngram or the folder"),
    ],
)
def test_what_is_refused(smoe: Callable, options: tuple[str, ...], message: str) -> None:
    result = smoe("profile", "depth", *options)
    assert result.code == 2
    assert re.search(message, result.err)
