"""Reading experts as residuals changes no token, and nothing of what is planned but what it says."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from smoe.core.config import EngineConfig
from smoe.core.draft import DraftConfig
from smoe.core.errors import ConfigError
from smoe.core.sampling import SamplingParams
from smoe.engine.draft.known_depth import depth_file
from smoe.engine.plan import plan_memory
from smoe.llm import LLM
from smoe.models.loading import open_checkpoint
from smoe.offload.build import POISON_VARIABLE
from tests.models.loading_folders import make_folder

PROMPTS = ["Once upon a time", "def add(a, b):\n"]
INT4 = DraftConfig(model="int4", tokens=4, auto_off=False)
RESIDUAL = replace(INT4, residual=True)


@pytest.fixture(autouse=True)
def _settings(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.setenv(POISON_VARIABLE, "1")


def answers(memory: str, draft: DraftConfig | None, tokens: int) -> tuple[list[tuple[int, ...]], float]:
    """Token ids, and bytes that came into slots for each transfer."""
    params = SamplingParams(max_tokens=tokens, ignore_eos=True)
    with LLM(threads=1, max_model_len=512, expert_memory=memory, draft=draft) as llm:
        found = [tuple(c.token_ids) for c in llm.generate(PROMPTS, params)]
        stats = llm.stats().experts
    return found, stats.bytes_moved / max(1, stats.disk_transfers)


def test_the_same_tokens_from_fewer_bytes() -> None:
    expected, _ = answers("all", None, 24)
    plain, whole = answers("60%", INT4, 24)
    found, part = answers("60%", RESIDUAL, 24)
    assert plain == found == expected
    assert part < 0.67 * whole


@pytest.mark.slow
@pytest.mark.parametrize("memory", ["32%", "40%", "50%", "60%", "75%", "100%"])
def test_256_tokens_of_every_memory(memory: str) -> None:
    expected, _ = answers("all", None, 256)
    assert answers(memory, RESIDUAL, 256)[0] == expected


def test_memory_grows_and_shrinks_beside_it() -> None:
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    expected, _ = answers("all", None, 12)
    with LLM(threads=1, max_model_len=256, draft=RESIDUAL, expert_memory="40%", expert_memory_max="80%") as llm:
        for size in ("70%", "36%"):
            llm.resize_experts(size)
            assert [tuple(c.token_ids) for c in llm.generate(PROMPTS, params)] == expected


def test_the_plan_says_it() -> None:
    checkpoint = open_checkpoint("builtin")
    plans = [plan_memory(checkpoint, EngineConfig(expert_memory="60%", draft=draft)) for draft in (INT4, RESIDUAL)]
    assert [plan.residual_group_size for plan in plans] == [None, 64]
    assert plans[0].draft_bytes == plans[1].draft_bytes
    assert 0 <= plans[1].slot_bytes - plans[0].slot_bytes <= 2 * 4096
    with pytest.raises(ConfigError, match=r"draft_residual: True \(only where experts are read from the disk"):
        plan_memory(checkpoint, EngineConfig(expert_memory="auto", draft=RESIDUAL))


def test_experts_in_another_dtype_have_none(tmp_path: Path) -> None:
    make_folder(tmp_path / "model", dtype=torch.float32)
    with pytest.raises(ConfigError, match=r"draft_residual: True \(only with experts in bfloat16"):
        plan_memory(open_checkpoint(tmp_path / "model"), EngineConfig(expert_memory="4", draft=RESIDUAL))


def test_how_far_to_draft_is_kept_apart() -> None:
    assert depth_file(INT4, "0" * 16) != depth_file(RESIDUAL, "0" * 16)
