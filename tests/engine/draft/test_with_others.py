"""Drafts beside what else an engine does: recording routes, resizing the memory of experts."""

from pathlib import Path

import numpy as np
import pytest

from smoe.core.draft import DraftConfig
from smoe.core.errors import ConfigError
from smoe.core.route_trace import read_route_trace
from smoe.core.sampling import SamplingParams
from smoe.llm import LLM

PROMPTS = ["Once upon a time", "def add(a, b):\n", "What is 12 plus 30?"]
PARAMS = SamplingParams(max_tokens=30, ignore_eos=True)


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.mark.parametrize("model", ["int4", "ngram"])
def test_the_routes_recorded_are_those_of_the_tokens_that_hold(tmp_path: Path, model: str) -> None:
    traces = []
    for name, draft in (("plain", None), ("drafted", DraftConfig(model=model, tokens=4, auto_off=False))):
        path = tmp_path / f"{name}.safetensors"
        with LLM(threads=1, max_model_len=256, record_routes=str(path), draft=draft) as llm:
            llm.generate(PROMPTS, PARAMS)
            drafted = llm.stats().draft
        traces.append(read_route_trace(path))
    plain, with_draft = traces
    assert drafted.drafted > 0
    for field in ("token_ids", "sequence_start", "phase", "expert_ids", "expert_weights"):
        assert np.array_equal(getattr(plain, field), getattr(with_draft, field)), field


def test_memory_is_resized_beside_the_draft() -> None:
    with LLM(threads=1, max_model_len=256) as llm:
        expected = [c.token_ids for c in llm.generate(PROMPTS, PARAMS)]
    draft = DraftConfig(model="int4", tokens=4, auto_off=False)
    memory = {"expert_memory": "40%", "expert_memory_max": "90%"}
    with LLM(threads=1, max_model_len=256, draft=draft, **memory) as llm:
        sizes = []
        for size in ("80%", "35%"):
            sizes.append(llm.resize_experts(size))
            assert [c.token_ids for c in llm.generate(PROMPTS, PARAMS)] == expected
        assert sizes[0] > sizes[1] >= 6
        with pytest.raises(ConfigError, match="of them for the draft"):
            llm.resize_experts("28%")
