"""What a draft takes, and what is refused before anything loads."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from smoe.core.config import EngineConfig
from smoe.core.draft import DraftConfig
from smoe.core.errors import CheckpointError, ConfigError
from smoe.core.parallel import ParallelConfig
from smoe.core.sampling import SamplingParams
from smoe.engine.draft.known_depth import AUTO_TOKENS, depth_file, keep_depth, known_depth, most_draft_tokens
from smoe.engine.plan import plan_memory
from smoe.llm import LLM
from smoe.models.loading import model_folder, open_checkpoint
from smoe.models.quantised import int4_nbytes

INT4 = DraftConfig(model="int4")


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    folder = tmp_path / "draft"
    shutil.copytree(model_folder("builtin"), folder)
    return folder


@pytest.mark.parametrize("memory", ["60%", "40", "12MB", "13MiB"])
def test_the_draft_and_the_slots_stay_within_the_memory_for_experts(memory: str) -> None:
    checkpoint = open_checkpoint("builtin")
    without = plan_memory(checkpoint, EngineConfig(expert_memory=memory))
    plan = plan_memory(checkpoint, EngineConfig(expert_memory=memory, draft=INT4))
    assert plan.draft_bytes == int4_nbytes(checkpoint.spec, INT4.group_size)
    whole = without.experts_resident_bytes
    assert whole - plan.slot_bytes < plan.experts_resident_bytes + plan.draft_bytes <= whole
    assert plan.expert_slots >= plan.num_moe_layers
    assert plan.new_bytes <= without.new_bytes + plan.workspace_bytes - without.workspace_bytes


def test_all_experts_in_memory_and_the_draft_beside_them() -> None:
    checkpoint = open_checkpoint("builtin")
    plan = plan_memory(checkpoint, EngineConfig(draft=INT4))
    assert plan.all_resident
    assert plan.new_bytes > plan.experts_total_bytes + plan.draft_bytes


def test_rows_of_a_draft_model_are_in_the_plan() -> None:
    checkpoint = open_checkpoint("builtin")
    alone = plan_memory(checkpoint, EngineConfig(draft=INT4))
    beside = plan_memory(checkpoint, EngineConfig(draft=DraftConfig(model="builtin")))
    assert (alone.draft_row_bytes, beside.draft_row_bytes) == (0, beside.kv_row_bytes)
    assert (alone.kv_rows, beside.kv_bytes) == (beside.kv_rows, 2 * alone.kv_bytes)


@pytest.mark.parametrize("memory", ["25%", "16", "6MB"])
def test_memory_that_the_draft_takes_whole_is_refused_with_the_figures(memory: str) -> None:
    checkpoint = open_checkpoint("builtin")
    nbytes = int4_nbytes(checkpoint.spec, INT4.group_size)
    message = (
        rf"expert_memory: '\d+ bytes' \({nbytes} of them for the draft, and then one expert a layer: 6 of \d+ bytes"
    )
    with pytest.raises(ConfigError, match=message):
        plan_memory(checkpoint, EngineConfig(expert_memory=memory, draft=INT4))


def test_a_policy_that_changes_outputs_verifies_nothing_unless_that_is_declared() -> None:
    checkpoint = open_checkpoint("builtin")
    lossy = EngineConfig(expert_memory="60%", expert_policy="quality-first", draft=INT4)
    with pytest.raises(
        ConfigError, match=r"expert_policy: 'quality-first' \(one that changes no output, or with draft_l"
    ):
        plan_memory(checkpoint, lossy)
    assert plan_memory(checkpoint, replace(lossy, draft=replace(INT4, lossy=True))).lossy
    with pytest.raises(ConfigError, match=r"draft_lossy: True \(has no effect"):
        plan_memory(checkpoint, EngineConfig(expert_memory="60%", draft=replace(INT4, lossy=True)))


@pytest.mark.parametrize(
    ("draft", "config", "message"),
    [
        ({"model": "ngram", "prefetch": "late"}, {}, r"draft_prefetch: 'late' \(has no effect without draft int4\)"),
        ({"model": "ngram", "group_size": 32}, {}, r"draft_group_size: 32 \(has no effect without draft int4\)"),
        ({"model": "int4", "prefetch": "late"}, {}, r"draft_prefetch: 'late' \(only with expert_memory below `all`"),
        ({"model": "ngram", "residual": True}, {}, r"draft_residual: True \(has no effect without draft int4\)"),
        ({"model": "int4", "residual": True}, {}, r"draft_residual: True \(only with expert_memory below `all`"),
        (
            {"model": "int4", "residual": True},
            {"expert_memory": "60%", "expert_tier": "host"},
            r"draft_residual: True \(only with expert_tier disk, not host\)",
        ),
        (
            {"model": "int4"},
            {"parallel": ParallelConfig(tensor_parallel_size=2)},
            r"draft: 'int4' \(only on one device\)",
        ),
    ],
)
def test_what_has_no_effect_is_refused(draft: dict, config: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineConfig(draft=DraftConfig(**draft), **config)


def test_a_draft_model_must_be_there_and_have_the_same_tokens(copied: Path) -> None:
    with pytest.raises(CheckpointError, match="no such model folder"):
        LLM(draft=DraftConfig(model="no/such"))
    path = copied / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    vocab = tokenizer["model"]["vocab"]
    (a, i), (b, j) = [(token, i) for token, i in vocab.items() if i in (300, 301)]
    vocab[a], vocab[b] = j, i
    path.write_text(json.dumps(tokenizer))
    with pytest.raises(ConfigError, match=r"draft: .* \(the model's tokenizer: token 300 is another\)"):
        LLM(draft=DraftConfig(model=str(copied)))


def test_a_draft_model_changes_no_token_and_is_right_when_it_is_the_model(copied: Path) -> None:
    prompts, params = ["Once upon a time", "def add(a, b):\n"], SamplingParams(max_tokens=30, ignore_eos=True)
    with LLM(threads=1, max_model_len=256) as llm:
        expected = [c.token_ids for c in llm.generate(prompts, params)]
    draft = DraftConfig(model=str(copied), tokens=4, auto_off=False)
    with LLM(threads=1, max_model_len=256, draft=draft) as llm:
        assert [c.token_ids for c in llm.generate(prompts, params)] == expected
        counts = llm.stats().draft
    assert counts.accepted == counts.drafted > 0


def test_sampled_answers_are_the_same_when_run_again() -> None:
    params = SamplingParams(max_tokens=24, temperature=1.0, seed=5, ignore_eos=True)
    draft = DraftConfig(model="int4", tokens=4, auto_off=False)
    with LLM(threads=1, max_model_len=256, draft=draft) as llm:
        first, again = (llm.generate(["Once upon a time"], params)[0].token_ids for _ in range(2))
        counts = llm.stats().draft
    assert first == again
    assert counts.drafted >= counts.accepted > 0.5 * counts.drafted


def test_auto_takes_what_was_measured_for_this_model_and_draft() -> None:
    assert most_draft_tokens(INT4, "model") == AUTO_TOKENS
    keep_depth(INT4, "model", {"tokens": 12})
    assert (known_depth(INT4, "model"), most_draft_tokens(INT4, "model")) == (12, 12)
    assert known_depth(INT4, "other") is None
    assert known_depth(replace(INT4, group_size=32), "model") is None
    assert most_draft_tokens(replace(INT4, tokens=3), "model") == 3
    for broken in ("", "[]", '{"tokens": 0}', '{"tokens": "8"}'):
        depth_file(INT4, "model").write_text(broken)
        assert known_depth(INT4, "model") is None
