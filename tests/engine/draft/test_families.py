"""A draft changes no token: every family, resident and offloaded, against the same engine without one."""

import random
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from smoe.core.config import EngineConfig
from smoe.core.draft import DraftConfig
from smoe.core.request import Request
from smoe.engine.build import build_core, build_runner
from smoe.offload.build import POISON_VARIABLE
from tests.engine.collect import Outcome, drain, request
from tests.models.parity import write_checkpoint
from tests.offload.test_exactness import _COMMON, FAMILIES

VOCAB = 89


@pytest.fixture(autouse=True)
def _poison(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv(POISON_VARIABLE, "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    name, options, how = FAMILIES[request.param]
    config = AutoConfig.for_model(name, **(_COMMON | options))
    return write_checkpoint(config, tmp_path_factory.mktemp(request.param), **how)


def requests(max_tokens: int) -> list[Request]:
    """Of unequal lengths and ends; one prompt takes several steps, and one waits for a place."""
    chance = random.Random(3)
    lengths = (3, 30, 1, 9, 4)
    prompts = [[chance.randrange(VOCAB) for _ in range(length)] for length in lengths]
    return [
        request(
            f"r{i}",
            prompt,
            max_tokens=max_tokens - 3 * i,
            stop_token_ids=(7,) if i == 3 else (),
            logprobs=1 if i == 0 else None,
            ignore_eos=i != 1,
        )
        for i, prompt in enumerate(prompts)
    ]


def answers(folder: Path, max_tokens: int, **config: Any) -> tuple[dict[str, Outcome], Any]:
    engine = EngineConfig(
        model=str(folder), max_num_seqs=4, max_num_batched_tokens=48, max_model_len=400, threads=1, **config
    )
    runner = build_runner(engine)
    try:
        core = build_core(engine, runner)
        core.add(requests(max_tokens))
        outcomes = drain(core)
        return outcomes, core.stats()
    finally:
        runner.shutdown()


def assert_same(found: dict[str, Outcome], expected: dict[str, Outcome]) -> None:
    for name, outcome in expected.items():
        last, wanted = found[name].last, outcome.last
        assert last is not None
        assert wanted is not None
        assert found[name].token_ids == outcome.token_ids
        assert (last.finish_reason, last.stop_reason, last.usage) == (
            wanted.finish_reason,
            wanted.stop_reason,
            wanted.usage,
        )
        assert found[name].logprobs == outcome.logprobs


@pytest.mark.parametrize(("memory", "tokens"), [("all", 3), ("5", 4)])
def test_a_self_draft_changes_no_token(folder: Path, memory: str, tokens: int) -> None:
    plain, _ = answers(folder, 26)
    draft = DraftConfig(model="int4", tokens=tokens, group_size=32, auto_off=False)
    found, stats = answers(folder, 26, draft=draft, expert_memory=memory)
    assert_same(found, plain)
    assert stats.draft.windows > 0
    assert stats.draft.drafted > stats.draft.accepted > 0


@pytest.mark.slow
@pytest.mark.parametrize("model", ["int4", "ngram", "itself"])
@pytest.mark.parametrize("tokens", [1, 2, 4, 8])
def test_256_tokens_for_every_draft_and_depth(folder: Path, model: str, tokens: int) -> None:
    plain, _ = answers(folder, 256)
    draft = DraftConfig(model=str(folder) if model == "itself" else model, tokens=tokens, auto_off=False)
    for memory in ("all",) if model == "itself" else ("all", "5"):
        found, stats = answers(folder, 256, draft=draft, expert_memory=memory)
        assert_same(found, plain)
        assert stats.draft.windows > 0
        if model == "itself":
            assert stats.draft.accepted > 0.98 * stats.draft.drafted
