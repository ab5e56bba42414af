"""Expert policies through the engine: an answer says what a lossy one changed for it, and others change nothing."""

import pytest

from smoe.core.config import EngineConfig
from smoe.core.errors import ConfigError
from smoe.core.sampling import SamplingParams
from smoe.llm import LLM

PROMPTS = ["Once upon a time", "def add(a, b):", "What is 12 plus 30?"]


def answers(**config):
    with LLM(threads=1, **config) as llm:
        completions = llm.generate(PROMPTS, SamplingParams(max_tokens=12, ignore_eos=True))
        return completions, llm.info(), llm.stats().experts


def test_a_lossy_policy_says_what_it_changed_for_whom():
    completions, info, experts = answers(expert_memory="25%", expert_policy="quality-first")
    assert info.lossy
    assert experts.substituted > 0
    assert sum(c.substituted_slots for c in completions) == experts.substituted
    assert sum(c.substituted_mass for c in completions) == pytest.approx(experts.substituted_mass)
    assert all(0 < c.substituted_mass < c.substituted_slots for c in completions)
    assert experts.admitted > 0


@pytest.mark.parametrize("policy", ["evict=least-stale,prefetch=gate", "prefetch=gate:threshold=0.05,evict=lfru"])
def test_a_lossless_policy_changes_no_token(policy):
    exact, _, _ = answers()
    completions, info, experts = answers(expert_memory="25%", expert_policy=policy)
    assert not info.lossy
    assert [c.token_ids for c in completions] == [c.token_ids for c in exact]
    assert all((c.substituted_slots, c.substituted_mass) == (0, 0) for c in completions)
    assert experts.prefetched > experts.prefetch_used > 0


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"expert_policy": "evict=fifo"}, "only with expert_memory below `all`"),
        ({"expert_policy": "evict=newest", "expert_memory": "25%"}, "one of random, fifo, lru"),
        ({"expert_policy": "miss=compute", "expert_memory": "25%"}, "needs a copy in host memory"),
        ({"expert_policy": "evict=belady", "expert_memory": "25%"}, "only a simulation knows the future"),
    ],
)
def test_policies_that_cannot_be(config, message):
    with pytest.raises(ConfigError, match=message):
        LLM(**config)


def test_the_default_is_chosen_when_the_engine_is_built():
    assert EngineConfig(expert_memory="25%").expert_policy == "auto"
