"""Memory of experts that changes while an engine works."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from smoe.core.config import EngineConfig
from smoe.core.errors import ConfigError
from smoe.core.sampling import SamplingParams
from smoe.engine import plan as planning
from smoe.engine.plan import plan_memory
from smoe.llm import LLM
from smoe.models.loading import open_checkpoint
from tests.engine.collect import request

PARAMS = SamplingParams(max_tokens=8)
SIZES = [("50%", 192), ("1", 6), ("2MB", 32), ("0.3", 115)]


def answer(llm: LLM) -> tuple[int, ...]:
    return tuple(llm.generate("Once upon a time", PARAMS)[0].token_ids)


@pytest.mark.parametrize("tier", ["disk", "host"])
def test_answers_stay_and_the_bound_moves(tier: str) -> None:
    with LLM("builtin", expert_memory="10%", expert_memory_max="50%", expert_tier=tier) as llm:
        expected, before = answer(llm), llm.stats().experts.budget_bytes
        slot_bytes = 61_440
        for memory, slots in SIZES:
            assert llm.resize_experts(memory) == slots
            assert llm.stats().experts.budget_bytes - before == (slots - 38) * slot_bytes
            assert answer(llm) == expected


def test_between_two_steps_of_a_request() -> None:
    with LLM("builtin", expert_memory="10%", expert_memory_max="50%") as llm:
        expected, client = answer(llm), llm.client
        client.submit([request("a", list(llm._encode("Once upon a time")), max_tokens=8)])
        got: list[int] = []
        for memory, slots in SIZES:
            got += [token for delta in client.poll() for token in delta.token_ids]
            with ThreadPoolExecutor(1) as other:
                assert other.submit(client.resize_experts, memory).result() == slots
        while deltas := client.poll():
            got += [token for delta in deltas for token in delta.token_ids]
        assert tuple(got) == expected


@pytest.mark.parametrize(
    ("memory", "message"),
    [
        ("60%", r"expert_memory: '60%' \(up to expert_memory_max: 192 slots over all layers, these are 230\)"),
        ("1kB", r"expert_memory: '1000 bytes' \(at least one expert a layer"),
        ("auto", r"expert_memory: 'auto' \(a size"),
        ("much", r"expert_memory: 'much' \(slots a layer"),
    ],
)
def test_refusals_change_nothing(memory: str, message: str) -> None:
    with LLM("builtin", expert_memory="10%", expert_memory_max="50%") as llm:
        before = llm.stats().experts.budget_bytes
        with pytest.raises(ConfigError, match=f"^{message}"):
            llm.resize_experts(memory)
        assert llm.stats().experts.budget_bytes == before


@pytest.mark.parametrize("memory", ["all", "10%"])
def test_what_was_not_made_for_it_is_not_resized(memory: str) -> None:
    with LLM("builtin", expert_memory=memory) as llm, pytest.raises(ConfigError, match="only with expert_memory_max"):
        llm.resize_experts("20%")


@pytest.mark.parametrize(
    ("memory", "most", "message"),
    [
        ("all", "50%", r"expert_memory_max: '50%' \(only with expert_memory below `all`"),
        ("10%", "auto", r"expert_memory_max: 'auto' \(a size"),
        ("10%", "0", r"expert_memory_max: '0' \(above zero"),
        ("10%", "5%", r"expert_memory_max: '5%' \(at least expert_memory: 38 slots over all layers, these are 19\)"),
    ],
)
def test_a_most_that_cannot_be(memory: str, most: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}"):
        plan_memory(open_checkpoint("builtin"), EngineConfig(expert_memory=memory, expert_memory_max=most))


def test_memory_is_planned_for_the_most(monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = open_checkpoint("builtin")
    small, large = (
        plan_memory(checkpoint, EngineConfig(expert_memory="10%", expert_memory_max=most)) for most in (None, "50%")
    )
    assert small.expert_slots == large.expert_slots == 38
    assert large.experts_resident_bytes - small.experts_resident_bytes == (192 - 38) * small.slot_bytes
    # Enough for what it begins with, but not for what it may become.
    free = small.dense_bytes + small.workspace_bytes + small.experts_resident_bytes + (8 << 20)
    monkeypatch.setattr(planning, "free_bytes", lambda: free)
    plan_memory(checkpoint, EngineConfig(expert_memory="10%"))
    with pytest.raises(ConfigError, match="expert_memory: '10%'"):
        plan_memory(checkpoint, EngineConfig(expert_memory="10%", expert_memory_max="90%"))
