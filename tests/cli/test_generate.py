"""Good input in process: what is printed where."""

import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from smoe import LLM, SamplingParams
from smoe.cli.answers import size
from smoe.core.placement_file import write_placement
from tests.collectives.placements import random_placement

KEYS = {
    *("text", "token_ids", "finish_reason", "stop_reason", "error", "usage", "logprobs", "stats"),
    *("lossy", "substituted_slots", "substituted_mass"),
}


def test_json_is_a_list_with_an_object_a_prompt(smoe: Callable) -> None:
    prompts = ("--prompt", "Once upon a time", "--prompt", "The king")
    options = ("--max-tokens", "6", "--logprobs", "2", "--expert-memory", "25%")
    result = smoe("generate", "--in-process", "--json", *prompts, *options)
    assert (result.code, result.err) == (0, "")
    answers = json.loads(result.out)
    with LLM() as llm:
        expected = llm.generate(["Once upon a time", "The king"], SamplingParams(max_tokens=6, logprobs=2))
    for answer, other in zip(answers, expected, strict=True):
        assert answer.keys() == KEYS
        assert (answer["text"], tuple(answer["token_ids"])) == (other.text, other.token_ids)
        assert answer["usage"]["completion_tokens"] == 6
        assert [entry["id"] for entry in answer["logprobs"]] == answer["token_ids"]
        assert [len(entry["top"]) for entry in answer["logprobs"]] == [2] * 6
        assert answer["stats"]["expert_misses"] > 0
        assert 0 < answer["stats"]["expert_peak_bytes"] <= answer["stats"]["expert_budget_bytes"]


def test_text_goes_to_stdout_and_the_table_to_stderr(smoe: Callable) -> None:
    result = smoe("generate", "--in-process", "--prompt", "Once upon a time", "--max-tokens", "4")
    assert result.code == 0
    assert result.out.startswith(", the")
    assert result.out.endswith("\n")
    for row in ("tokens/s", "time to first token", "expert hits / misses", "expert bytes moved", "peak"):
        assert row in result.err
    assert "draft" not in result.err


def test_token_ids_need_no_tokenizer(smoe: Callable, tiny: Path) -> None:
    arguments = ("generate", "--in-process", "--model", str(tiny), "--prompt-token-ids", "1,2,3", "--max-tokens", "5")
    [answer] = json.loads(smoe(*arguments, "--json").out)
    assert answer["text"] is None
    assert len(answer["token_ids"]) == answer["usage"]["completion_tokens"]
    assert smoe(*arguments).out.split() == [str(token_id) for token_id in answer["token_ids"]]


class Stdin:
    def __init__(self, data: bytes) -> None:
        self.buffer = io.BytesIO(data)

    def isatty(self) -> bool:
        return False


def test_chat_survives_bad_lines(smoe: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Stdin(b"Once upon\ncaf\xe9\n/nonsense\n/reset\nOnce upon\n/exit\nnever read\n"))
    result = smoe("chat", "--in-process", "--max-tokens", "4")
    assert result.code == 0
    first, second = result.out.splitlines()
    assert first == second
    errors = [line for line in result.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 2
    assert "input: b'caf\\xe9\\n' (UTF-8; byte 0xe9 at position 3)" in errors[0]
    assert "command: '/nonsense'" in errors[1]


def test_experts_of_a_chat_can_be_given_more_memory(smoe: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = b"Once upon\n/memory 50%\n/reset\nOnce upon\n/memory 90%\n/memory\n"
    monkeypatch.setattr(sys, "stdin", Stdin(lines))
    limits = ("--expert-memory", "10%", "--expert-memory-max", "50%", "--expert-tier", "host")
    result = smoe("chat", "--in-process", "--max-tokens", "4", *limits)
    assert result.code == 0
    first, second = result.out.splitlines()
    assert first == second
    assert "192 experts fit, over all layers\n" in result.err
    errors = [line for line in result.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 2
    assert "expert_memory: '90%' (up to expert_memory_max" in errors[0]
    assert "command: '/memory'" in errors[1]


def test_experts_of_a_chat_on_one_device_have_nowhere_to_move(
    smoe: Callable, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    placement = random_placement(0, experts=4, layers=(0,), devices=2)
    write_placement(tmp_path / "two", placement)
    lines = f"/placement {tmp_path / 'two'}\n/placement nowhere\nOnce upon\n".encode()
    monkeypatch.setattr(sys, "stdin", Stdin(lines))
    result = smoe("chat", "--in-process", "--max-tokens", "4")
    assert (result.code, len(result.out.splitlines())) == (0, 1)
    errors = [line for line in result.err.splitlines() if line.startswith("error: ")]
    assert re.fullmatch(r"error: placement: '.*two' \(has no effect on one device: .*\)", errors[0])
    assert errors[1] == "error: nowhere: no placement: it has no placement.json"


def test_a_recorded_run_can_be_looked_into(smoe: Callable, tmp_path: Path) -> None:
    trace = str(tmp_path / "routes.safetensors")
    arguments = ("--prompt", "Once", "--max-tokens", "3", "--record-routes", trace)
    assert smoe("generate", "--in-process", *arguments).code == 0
    summary = json.loads(smoe("trace", "info", trace, "--json").out)
    assert (summary["sequences"], summary["top_k"]) == (1, 8)
    assert "repeat share" in smoe("trace", "info", trace).out


def test_a_plan_of_devices_has_a_row_each(smoe: Callable, tmp_path: Path) -> None:
    file = tmp_path / "d.yaml"
    file.write_text("parallel: {tensor_parallel_size: 2}\nexperts: {memory: 25%}\n")
    plans = json.loads(smoe("plan", str(file), "--data-parallel-size", "2", "--json").out)
    assert [(plan["device"], plan["group"]) for plan in plans] == [(0, 0), (1, 0), (2, 1), (3, 1)]
    assert all(plan["expert_slots"] == 24 and plan["experts"] == 96 for plan in plans)
    out = smoe("plan", str(file)).out
    assert out.count("48 of 192") == 2
    assert "? of 192" in smoe("plan", str(file), "--expert-memory", "auto").out


def test_plan_counts_what_it_shows(smoe: Callable) -> None:
    plan = json.loads(smoe("plan", "--expert-memory", "25%", "--json").out)
    assert plan["expert_slots"] == plan["num_moe_layers"] * plan["num_experts"] // 4
    assert plan["predicted_peak_rss_bytes"] > plan["dense_bytes"] + plan["experts_resident_bytes"]
    assert "96 of 384 experts" in smoe("plan", "--expert-memory", "25%").out
    most = json.loads(smoe("plan", "--expert-memory", "25%", "--expert-memory-max", "50%", "--json").out)
    assert most["expert_slots"] == plan["expert_slots"]
    assert most["experts_resident_bytes"] == 2 * plan["experts_resident_bytes"]


@pytest.mark.parametrize("memory", ["60%", "all"])
def test_plan_and_generate_say_the_same_of_a_draft(
    smoe: Callable, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory, memory: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))
    options = ("--draft", "int4", "--expert-memory", memory)
    plan = json.loads(smoe("plan", *options, "--json").out)
    draft, experts = plan["draft_bytes"], 0 if memory == "all" else plan["experts_resident_bytes"]
    assert f" {size(draft)} " in row_of("draft int4", smoe("plan", *options).out)

    generate = ("generate", "--in-process", "--prompt", "Once", "--max-tokens", "3", *options)
    [answer] = json.loads(smoe(*generate, "--json").out)
    assert (answer["stats"]["draft_bytes"], answer["stats"]["expert_budget_bytes"]) == (draft, experts)
    bound = "all resident" if memory == "all" else size(experts)
    assert f" {bound}, and {size(draft)} of the draft " in row_of("expert memory: bound", smoe(*generate).err)


def row_of(name: str, table: str) -> str:
    [row] = [line for line in table.splitlines() if name in line]
    return row
