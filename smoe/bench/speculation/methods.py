"""What is compared: each method has the same memory for experts, draft included."""

from dataclasses import dataclass, replace

from smoe.core.config import EngineConfig
from smoe.core.draft import LOOKUP_DRAFT, SELF_DRAFT, DraftConfig, PrefetchTiming
from smoe.offload.build import DRAFT_POLICY
from smoe.offload.policies.spec import parse_policies


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """`unshared`: the draft has weights of its own beside the experts, and a KV cache of its own, as SpecMoEOff's; that
    many bytes are missing from the experts' memory. What is evicted is always said, so that no default hides it."""

    name: str
    policy: str = "evict=lru"
    draft: DraftConfig | None = None
    unshared: bool = False

    @property
    def depth(self) -> int:
        """Tokens drafted a window, 0 without a draft."""
        return self.draft.tokens if self.draft is not None and isinstance(self.draft.tokens, int) else 0

    def config(self, model: str, budget_bytes: int, own_bytes: int, *, tier: str, seqs: int) -> EngineConfig:
        """`own_bytes` are those of the weights beside the experts and of a KV cache."""
        budget = budget_bytes - (own_bytes if self.unshared else 0)
        return EngineConfig(
            model=model,
            expert_memory=f"{budget}B",
            expert_policy=str(parse_policies(self.policy)),
            expert_tier=tier,
            draft=self.draft,
            max_num_seqs=seqs,
        )


def self_draft(tokens: int, prefetch: PrefetchTiming = "adaptive", *, residual: bool = False) -> DraftConfig:
    return DraftConfig(model=SELF_DRAFT, tokens=tokens, prefetch=prefetch, auto_off=False, residual=residual)


DEMAND = Method(name="demand LRU")
LOOKAHEAD = Method(name="next-layer look-ahead", policy="evict=lru,prefetch=gate:width=2")


def fixed(tokens: int) -> Method:
    return Method(name="fixed checkpoints, unshared", draft=self_draft(tokens, "fixed"), unshared=True)


def adaptive(tokens: int, *, residual: bool = False) -> Method:
    name = "INT4 self-draft, residuals" if residual else "INT4 self-draft"
    return Method(name=name, policy=DRAFT_POLICY, draft=self_draft(tokens, residual=residual))


def shorter(method: Method, most: int) -> Method:
    """The same, drafting at most so many tokens."""
    assert method.draft is not None
    return replace(method, draft=replace(method.draft, tokens=min(method.depth, most)))


def lookup(tokens: int) -> Method:
    draft = DraftConfig(model=LOOKUP_DRAFT, tokens=tokens, auto_off=False)
    return Method(name=f"prompt look-up, K = {tokens}", draft=draft)


def original(tokens: int) -> Method:
    """The built-in model itself drafts for its inflated twin: nearly free and nearly always right, so a bound on what
    any draft can bring, and no method."""
    draft = DraftConfig(model="builtin", tokens=tokens, auto_off=False)
    return Method(name="ideal draft (the model before inflation)", draft=draft)
