"""Bad input: one line that names field, value and limit, exit code 2, and nothing was started for it."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.models import loading_folders as folders

PROMPT = ("generate", "--prompt", "x")
TIER = (*PROMPT, "--expert-memory", "25%", "--expert-tier")
TWO = (*PROMPT, "--tensor-parallel-size", "2")
IDS = ("generate", "--prompt-token-ids")

ARGUMENTS = [
    (("generate",), r"prompt: None \(exactly one of --prompt, --prompt-file, --prompt-token-ids\)"),
    ((*PROMPT, "--prompt-token-ids", "1"), r"prompt: '--prompt and --prompt-token-ids' \(exactly one of"),
    ((*PROMPT, "--max-tokens", "0"), r"max_tokens: 0 \(integer >= 1\)"),
    ((*PROMPT, "--max-tokens", "-5"), r"max_tokens: -5 \(integer >= 1\)"),
    ((*PROMPT, "--max-tokens", "many"), r"max_tokens: 'many' \(integer\)"),
    ((*PROMPT, "--max-tokens", "1.5"), r"max_tokens: '1.5' \(integer\)"),
    ((*PROMPT, "--temperature", "-1"), r"temperature: -1.0 \(number, 0 to 100\)"),
    ((*PROMPT, "--temperature", "nan"), r"temperature: nan \(number, 0 to 100\)"),
    ((*PROMPT, "--temperature", "warm"), r"temperature: 'warm' \(number\)"),
    ((*PROMPT, "--temperature", "1", "--top-p", "0"), r"top_p: 0.0 \(number, above 0 up to 1\)"),
    ((*PROMPT, "--temperature", "1", "--top-p", "1.5"), r"top_p: 1.5 \(number, above 0 up to 1\)"),
    ((*PROMPT, "--temperature", "1", "--top-k", "-1"), r"top_k: -1 \(integer >= 0; 0 keeps all\)"),
    ((*PROMPT, "--temperature", "1", "--seed", "-1"), r"seed: -1 \(integer, 0 to 2\^63-1\)"),
    ((*PROMPT, "--stop", ""), r"stop: \('',\) \(non-empty strings\)"),
    ((*PROMPT, "--json", "--logprobs", "21"), r"logprobs: 21 \(integer, 0 to 20\)"),
    ((*PROMPT, "--top-k", "5"), r"top_k: '5' \(has no effect without --temperature above 0\)"),
    ((*PROMPT, "--top-p", "0.9"), r"top_p: '0.9' \(has no effect without --temperature above 0\)"),
    ((*PROMPT, "--temperature", "0", "--seed", "1"), r"seed: '1' \(has no effect without --temperature above 0\)"),
    ((*PROMPT, "--logprobs", "2"), r"logprobs: '2' \(has no effect without --json\)"),
    ((*PROMPT, "--record-fraction", "0.5"), r"record_fraction: '0.5' \(has no effect without --record-routes\)"),
    ((*PROMPT, "--record-routes", "r", "--record-fraction", "0"), r"record_fraction: 0.0 \(above 0 up to 1\)"),
    ((*PROMPT, "--dtype", "int3"), r"dtype: 'int3' \(one of auto, float32, bfloat16\)"),
    ((*PROMPT, "--threads", "0"), r"threads: 0 \(integer >= 1\)"),
    ((*PROMPT, "--expert-memory", "0"), r"expert_memory: '0' \(above zero: slots"),
    ((*PROMPT, "--expert-memory", "-1"), r"expert_memory: '-1' \(slots"),
    ((*PROMPT, "--expert-memory", "lots"), r"expert_memory: 'lots' \(slots"),
    ((*PROMPT, "--expert-memory", "150%"), r"expert_memory: '150%' \(a fraction is at most 1"),
    ((*PROMPT, "--expert-memory", "1kB"), r"expert_memory: .*(one expert|55296|bytes)"),
    ((*PROMPT, "--expert-tier", "host"), r"expert_tier: 'host' \(only with expert_memory below `all`"),
    ((*TIER, "gpu"), r"expert_tier: 'gpu' \(disk, host \(all experts in host memory\) or host:BYTES"),
    ((*TIER, "disk:1GB"), r"expert_tier: 'disk:1GB' \(disk, host"),
    ((*TIER, "host:"), r"expert_tier: 'host:' \(disk, host"),
    ((*TIER, "host:25%"), r"expert_tier: 'host:25%' \(disk, host"),
    ((*TIER, "host:0"), r"expert_tier: 'host:0' \(disk, host"),
    ((*TIER, "host:100kB"), r"expert_tier: '100000 bytes' \(at least one expert a layer: 6 of \d+ bytes each"),
    ((*TIER, "disk", "--expert-policy", "miss=compute"), r"policies.miss: 'compute' \(experts are kept in disk"),
    ((*PROMPT, "--draft-tokens", "4"), r"draft_tokens: 4 \(has no effect without draft\)"),
    ((*PROMPT, "--no-draft-auto-off"), r"draft_auto_off: False \(has no effect without draft\)"),
    (
        (*PROMPT, "--draft", "int4", "--draft-tokens", "65"),
        r"draft_tokens: 65 \(auto, online or an integer from 1 to 64",
    ),
    ((*PROMPT, "--draft", "int4", "--draft-tokens", "few"), r"draft_tokens: 'few' \(auto, online or an integer"),
    ((*PROMPT, "--draft", "int4", "--draft-group-size", "48"), r"draft_group_size: 48 \(one of 32, 64, 128\)"),
    ((*PROMPT, "--draft", "no/such/folder"), r"no/such/folder: no such model folder"),
    ((*PROMPT, "--max-model-len", "0"), r"max_model_len: 0 \(integer >= 1\)"),
    ((*PROMPT, "--max-model-len", "5000"), r"max_model_len: 5000 \(2 to the model's 1024 positions\)"),
    ((*PROMPT, "--model", "no/such/folder"), r"no/such/folder: no such model folder"),
    ((*IDS, "1,x"), r"prompt_token_ids: '1,x' \(integers between commas"),
    ((*IDS, ""), r"prompt_token_ids: '' \(integers between commas"),
    ((*IDS, "1,4096"), r"prompt_token_ids: 4096 \(integer, 0 to 4095, at position 1\)"),
    ((*IDS, "-1"), r"prompt_token_ids: -1 \(integer, 0 to 4095, at position 0\)"),
    ((*IDS, ",".join(["7"] * 1030)), r"prompt length: 1030 \(below the context length of 1024 tokens"),
    (("generate", "--prompt", ""), r"prompt_token_ids: \(\) \(at least one token\)"),
    (("generate", "--prompt-file", "no-such-file"), r"prompt_file: 'no-such-file' \(a readable file: No such file"),
    (("generate", "--prompt-file", "-", "--prompt-file", "-"), r"prompt_file: '-' \(stdin can be read once\)"),
    ((*PROMPT, "--frobnicate"), r"No such option: --frobnicate"),
    ((*PROMPT, "--max-tokens"), r"Option '--max-tokens' requires an argument"),
    (("generate", "stray", "--prompt", "x"), r"config: 'stray' \(a YAML file with a deployment; a text to continue is"),
    (("plan", "stray"), r"config: 'stray' \(a YAML file with a deployment"),
    (("plan", "--tensor-parallel-size", "7"), r"tensor_parallel_size: 7 \(one of 1, 2, 3, 4, 5, 6, by the heads"),
    ((*PROMPT, "--tensor-parallel-size", "0"), r"tensor_parallel_size: 0 \(integer >= 1\)"),
    ((*PROMPT, "--tensor-parallel-size", "x"), r"tensor_parallel_size: 'x' \(integer\)"),
    ((*PROMPT, "--tensor-parallel-size", "7"), r"tensor_parallel_size: 7 \(one of 1, 2, 3, 4, 5, 6, by the heads"),
    ((*TWO, "--in-process"), r"tensor_parallel_size: 2 \(1 with --in-process: several devices need an actor each\)"),
    ((*TWO, "--expert-memory", "1"), r"expert_memory: '1' \(for the share of rank 0, 0.5 slots: at least one expert"),
    (
        (*TWO, "--expert-memory", "25%", "--expert-policy", "prefetch=gate"),
        r"policies.prefetch: 'gate' \(none on several devices: ",
    ),
    ((*TWO, "--record-routes", "r"), r"record_routes: 'r' \(none on several devices, where"),
    ((*TWO, "--schedule", "sideways"), r"schedule: 'sideways' \(one of allreduce, scatter, speculative\)"),
    ((*TWO, "--schedule", "speculative"), r"schedule: 'speculative' \(needs a placement with tables"),
    ((*TWO, "--placement", "no/such/folder"), r"no/such/folder"),
    ((*TWO, "--capacity-factor", "2"), r"capacity_factor: 2.0 \(only with schedule speculative\)"),
    ((*TWO, "--capacity-factor", "lots"), r"capacity_factor: 'lots' \(number\)"),
    ((*PROMPT, "--schedule", "allreduce"), r"schedule: 'allreduce' \(has no effect on one device"),
    ((*PROMPT, "--schedule", "scatter"), r"schedule: 'scatter' \(has no effect without --tensor-parallel-size of 2"),
    ((*PROMPT, "--placement", "d"), r"placement: 'd' \(has no effect on one device"),
    ((*PROMPT, "--no-dedup"), r"dedup: False \(has no effect on one device"),
    ((*PROMPT, "--data-parallel-size", "2", "--in-process"), r"data_parallel_size: 2 \(1 with --in-process"),
    ((*PROMPT, "--data-parallel-size", "2", "--schedule", "scatter"), r"schedule: 'scatter' \(has no effect without"),
    ((*TWO, "--data-parallel-routing", "even"), r"data_parallel_routing: 'even' \(has no effect without --data-par"),
    (("chat", "--tensor-parallel-size", "2", "--in-process"), r"tensor_parallel_size: 2 \(1 with --in-process"),
    (("transmogrify",), r"No such command 'transmogrify'"),
    (("chat", "--expert-tier", "host"), r"expert_tier: 'host' \(only with expert_memory below `all`"),
    (("chat", "--expert-memory-max", "50%"), r"expert_memory_max: '50%' \(only with expert_memory below `all`"),
    (("plan", "--expert-memory-max", "50%"), r"expert_memory_max: '50%' \(only with expert_memory below `all`"),
    (("plan", "--expert-memory", "25%", "--expert-memory-max", "9%"), r"expert_memory_max: '9%' \(at least expert_mem"),
    (("chat", "--expert-memory", "25%", "--expert-memory-max", "lots"), r"expert_memory_max: 'lots' \(slots a layer"),
    (("chat", "--max-tokens", "0"), r"max_tokens: 0 \(integer >= 1\)"),
    (("chat", "--top-k", "3"), r"top_k: '3' \(has no effect without --temperature above 0\)"),
    (("chat", "--model", "no/such/folder"), r"no/such/folder: no such model folder"),
    (("plan", "--model", "no/such/folder"), r"no/such/folder: no such model folder"),
    (("plan", "--max-num-seqs", "0"), r"max_num_seqs: 0 \(integer >= 1\)"),
    (("doctor", "--dir", "no/such/folder"), r"dir: 'no/such/folder' \(a folder\)"),
    (("convert", "inflate", "--hidden", "64", "--expert-ffn", "64"), r"[Mm]issing option '--out'"),
    (("convert", "inflate", "--hidden", "x", "--expert-ffn", "64", "--out", "o"), r"hidden: 'x' \(integer\)"),
    (("convert", "inflate", "--hidden", "0", "--expert-ffn", "64", "--out", "o"), r"hidden: '0' \(integer >= 1\)"),
    (("convert", "inflate", "--hidden", "64", "--expert-ffn", "64", "--out", "o"), r"hidden: 64 \("),
    (("trace", "info", "no-such-trace"), r"no-such-trace: "),
]


def check_refusal(code: int, out: str, err: str, expected: str) -> None:
    assert (code, out) == (2, "")
    lines = err.splitlines()
    assert len(lines) == 1, err
    assert re.search(f"^error: .*{expected}", lines[0]), lines[0]


@pytest.mark.usefixtures("nothing_starts")
@pytest.mark.parametrize(
    ("arguments", "expected"), ARGUMENTS, ids=lambda value: " ".join(value)[:60] if type(value) is tuple else ""
)
def test_arguments(smoe: Callable, arguments: tuple[str, ...], expected: str) -> None:
    result = smoe(*arguments)
    check_refusal(result.code, result.out, result.err, expected)


def missing_shard(folder: Path) -> None:
    folders.make_folder(folder, num_shards=2)
    (folder / "model-00002-of-00002.safetensors").unlink()


def truncated_shard(folder: Path) -> None:
    folders.make_folder(folder)
    with open(folder / "model.safetensors", "r+b") as file:
        file.truncate((folder / "model.safetensors").stat().st_size - 100)


def index_names_absent_tensor(folder: Path) -> None:
    folders.make_folder(folder, num_shards=2)
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["model.extra.weight"] = "model-00001-of-00002.safetensors"
    path.write_text(json.dumps(index))


def left_over_tensor(folder: Path) -> None:
    tensors = folders.make_folder(folder)
    folders.write_shards(folder, {**tensors, "model.extra.weight": torch.zeros(3)})


def both_layouts(folder: Path) -> None:
    tensors = folders.make_folder(folder)
    folders.write_shards(folder, {**tensors, **folders.random_tensors(folder, layout="stacked")})


def wrong_shape(folder: Path) -> None:
    tensors = folders.make_folder(folder)
    folders.write_shards(folder, {**tensors, "model.norm.weight": torch.zeros(25)})


def more_experts_chosen_than_exist(folder: Path) -> None:
    folders.make_folder(folder)
    folders.write_config(folder, {**folders.QWEN3, "num_experts_per_tok": 6})


def broken_config(folder: Path) -> None:
    folders.make_folder(folder)
    (folder / "config.json").write_text("{")


def unknown_family(folder: Path) -> None:
    folders.make_folder(folder)
    folders.write_config(folder, {**folders.QWEN3, "model_type": "llama"})


def no_weights(folder: Path) -> None:
    folders.write_config(folder, folders.QWEN3)


FOLDERS = [
    (missing_shard, r"model-00002-of-00002.safetensors"),
    (truncated_shard, r"model.safetensors.*(truncated|bytes)"),
    (index_names_absent_tensor, r"model.extra.weight"),
    (left_over_tensor, r"model.extra.weight"),
    (both_layouts, r"experts"),
    (wrong_shape, r"model.norm.weight.*25.*24"),
    (more_experts_chosen_than_exist, r"6.*5"),
    (broken_config, r"config.json: broken JSON"),
    (unknown_family, r"llama"),
    (no_weights, r"safetensors"),
]


@pytest.mark.usefixtures("nothing_starts")
@pytest.mark.parametrize(("breaks", "expected"), FOLDERS, ids=lambda value: getattr(value, "__name__", ""))
def test_model_folders(smoe: Callable, tmp_path: Path, breaks: Callable[[Path], None], expected: str) -> None:
    folder = tmp_path / "model"
    breaks(folder)
    result = smoe("generate", "--model", str(folder), "--prompt-token-ids", "1,2", "--max-tokens", "2")
    check_refusal(result.code, result.out, result.err, expected)
    planned = smoe("plan", "--model", str(folder))
    check_refusal(planned.code, planned.out, planned.err, expected)


@pytest.mark.usefixtures("nothing_starts")
def test_text_needs_a_tokenizer(smoe: Callable, tiny: Path) -> None:
    result = smoe("generate", "--model", str(tiny), "--prompt", "hello")
    check_refusal(result.code, result.out, result.err, "prompt: 'hello' .*no tokenizer")
    chat = smoe("chat", "--model", str(tiny))
    check_refusal(chat.code, chat.out, chat.err, "a folder with a tokenizer")


@pytest.mark.usefixtures("nothing_starts")
def test_a_prompt_file_that_is_not_utf8(smoe: Callable, tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_bytes(b"caf\xe9")
    result = smoe("generate", "--prompt-file", str(file))
    check_refusal(result.code, result.out, result.err, r"prompt_file: .* \(UTF-8; byte 0xe9 at position 3\)")


@pytest.mark.usefixtures("nothing_starts")
def test_inflating_into_a_folder_that_holds_something(smoe: Callable, tmp_path: Path) -> None:
    shutil.copy(__file__, tmp_path)
    result = smoe("convert", "inflate", "--hidden", "256", "--expert-ffn", "64", "--out", str(tmp_path))
    check_refusal(result.code, result.out, result.err, "out: ")
