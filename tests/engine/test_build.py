"""The built-in model through the whole engine."""

import json
import shutil
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from smoe.core.config import EngineConfig
from smoe.core.errors import RequestError
from smoe.core.route_trace import read_route_trace
from smoe.engine.build import build_local_client
from smoe.engine.local import LocalClient
from smoe.engine.runner import Runner
from smoe.models.loading import model_folder
from tests.engine.collect import Outcome, merge, request

TEXTS = ["Once upon a time", "def add(a, b):\n", "2 + 2 =", "The", "世界 🎉"]
NUM_TOKENS = 12


def run(client: LocalClient, prompts: Sequence[Sequence[int]], **params: Any) -> list[Outcome]:
    params = {"max_tokens": NUM_TOKENS, "ignore_eos": True} | params
    client.submit([request(str(i), prompt, **params) for i, prompt in enumerate(prompts)])
    deltas = []
    while found := client.poll():
        deltas += found
    client.check_integrity()
    outcomes = merge(deltas)
    return [outcomes[str(i)] for i in range(len(prompts))]


def runner_of(client: LocalClient) -> Runner:
    executor = client._core.executor
    assert isinstance(executor, Runner)
    return executor


@cache
def reference() -> tuple[list[list[int]], list[list[int]], list[str]]:
    """(prompts, tokens, texts), each prompt alone and in one piece."""
    client = build_local_client(EngineConfig(dtype="float32"))
    prompts = [client.encode_text(text) for text in TEXTS]
    outcomes = [run(client, [prompt])[0] for prompt in prompts]
    for outcome in outcomes:
        assert outcome.text == client.decode_text(outcome.token_ids)
    client.shutdown()
    return prompts, [outcome.token_ids for outcome in outcomes], [outcome.text for outcome in outcomes]


@pytest.mark.parametrize("memory", ["all", "8", "25%"])
@pytest.mark.parametrize("budget", [3, 512])
def test_batches_chunks_and_residency_change_no_token(memory: str, budget: int) -> None:
    prompts, tokens, texts = reference()
    client = build_local_client(EngineConfig(dtype="float32", expert_memory=memory, max_num_batched_tokens=budget))
    outcomes = run(client, prompts)
    assert [outcome.token_ids for outcome in outcomes] == tokens
    assert [outcome.text for outcome in outcomes] == texts
    experts = client.stats().experts
    assert experts.hits > 0
    assert (experts.misses > 0) == (memory != "all")
    client.shutdown()


@pytest.mark.parametrize("memory", ["all", "8"])
def test_rows_that_nobody_wrote_are_never_read(memory: str) -> None:
    prompts, tokens, _ = reference()
    client = build_local_client(EngineConfig(dtype="float32", expert_memory=memory, max_num_batched_tokens=5))
    for layer in runner_of(client)._kv.layers:
        layer.first.fill_(float("nan"))
        layer.second.fill_(float("nan"))
    for _ in range(2):  # the second time over rows that others have left behind
        assert [outcome.token_ids for outcome in run(client, prompts)] == tokens
        for layer in runner_of(client)._kv.layers:
            layer.second.fill_(float("inf"))
    client.shutdown()


@pytest.mark.parametrize("memory", ["all", "8"])
def test_a_numeric_error_inside_the_model_ends_one_request(memory: str) -> None:
    prompts, tokens, _ = reference()
    client = build_local_client(EngineConfig(dtype="float32", expert_memory=memory))
    decoder: Any = runner_of(client)._decoder
    decoder._embed = decoder._embed.clone()  # the head keeps the weights that are tied to these
    decoder._embed[4000] = float("nan")
    assert all(4000 not in [*prompt, *new] for prompt, new in zip(prompts, tokens, strict=True))
    *others, bad = run(client, [*prompts, [5, 4000, 6]])
    assert (bad.reason, bad.token_ids) == ("numeric_error", [])
    assert [outcome.token_ids for outcome in others] == tokens
    client.shutdown()


def test_info_and_default_length() -> None:
    client = build_local_client(EngineConfig(max_model_len=32, max_num_seqs=2))
    info = client.info()
    assert (info.name, info.num_experts, info.top_k, info.max_model_len) == ("builtin", 64, 8, 32)
    assert (info.vocab_size, info.eos_token_ids, info.has_tokenizer) == (4096, (0,), True)
    outcome = run(client, [[5, 6, 7]], max_tokens=None)[0]
    assert (outcome.reason, len(outcome.token_ids)) == ("length", 29)
    with pytest.raises(RequestError, match=r"prompt length: 40 \(below the context length of 32 tokens"):
        client.submit([request("long", [5] * 40)])
    client.shutdown()


def test_a_folder_without_tokenizer_takes_token_ids(tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        shutil.copy(model_folder("builtin") / name, tmp_path / name)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 7]}))
    prompts, tokens, _ = reference()
    client = build_local_client(EngineConfig(model=str(tmp_path), dtype="float32"))
    assert (client.info().has_tokenizer, client.info().eos_token_ids) == (False, (0, 7))
    outcome = run(client, prompts[:1])[0]
    assert (outcome.token_ids, outcome.text) == (tokens[0], "")
    assert client.decode_text(tokens[0]) is None
    client.shutdown()


def test_recorded_routes_are_those_of_the_tokens(tmp_path: Path) -> None:
    traces = []
    prompts, tokens, _ = reference()
    for name, budget in (("whole", 512), ("chunks", 3)):
        path = tmp_path / name
        config = EngineConfig(dtype="float32", record_routes=str(path), max_num_batched_tokens=budget)
        client = build_local_client(config)
        run(client, prompts)
        fingerprint = client.info().fingerprint
        client.shutdown()
        traces.append(read_route_trace(path))
        assert traces[-1].fingerprint == fingerprint
    whole, chunks = traces
    assert whole.token_ids.tolist() == [
        t for prompt, new in zip(prompts, tokens, strict=True) for t in [*prompt, *new[:-1]]
    ]
    starts = {tuple(t.token_ids[a:b]): i for t in (chunks,) for i, (a, b) in enumerate(_ranges(t))}
    for a, b in _ranges(whole):
        c, d = list(_ranges(chunks))[starts[tuple(whole.token_ids[a:b])]]
        assert (whole.expert_ids[:, a:b] == chunks.expert_ids[:, c:d]).all()


def _ranges(trace: Any) -> list[tuple[int, int]]:
    return list(zip(trace.sequence_start[:-1], trace.sequence_start[1:], strict=True))
