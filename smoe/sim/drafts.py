"""A draft in a simulation: how far it goes, how well it does, what it takes; and the windows that it makes of a trace.

The rows of a trace stand in for what a draft proposes: a token that the model refuses has, until then, the experts of
the one that came instead.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from smoe.core.draft import GROUP_SIZES, TIMINGS, PrefetchTiming
from smoe.core.errors import ConfigError
from smoe.core.route_trace import Array, RouteTrace
from smoe.offload.drafted import PlanOrder
from smoe.offload.layer_pass import ROLLING
from smoe.offload.policies.draft_plan import PlanRule
from smoe.sim.forwards import Mode, forwards


@dataclass(frozen=True, slots=True, kw_only=True)
class SimDraft:
    """`tokens` a window, each kept with chance `accept` while all before it are; of the experts that the draft's router
    chooses, a share `recall` are the model's, the others any of the layer. A token takes `step_s`. Of the memory for
    experts the draft takes what a share `bytes_share` of all experts would. `rule` and `order` are of its plans,
    `rolling` of the passes that verify.
    """

    tokens: int
    accept: float = 1.0
    recall: float = 1.0
    step_s: float = 0.0
    bytes_share: float = 0.0
    timing: PrefetchTiming = "adaptive"
    rule: PlanRule | None = None
    order: PlanOrder = "deadline"
    max_planned: int | None = None
    rolling: int | None = ROLLING

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise ConfigError("draft_tokens", self.tokens, "integer >= 1")
        for name, share in (("acceptance", self.accept), ("recall", self.recall)):
            if not 0 <= share <= 1:
                raise ConfigError(f"draft_{name}", share, "a share from 0 to 1")
        if not 0 <= self.bytes_share < 1:
            raise ConfigError("draft_bytes_share", self.bytes_share, "a share of all experts' bytes, below 1")
        if self.step_s < 0:
            raise ConfigError("draft_step", self.step_s, "seconds, 0 or more")
        if self.timing not in TIMINGS:
            raise ConfigError("draft_prefetch", self.timing, f"one of {', '.join(TIMINGS)}")


def int4_share(group_size: int, expert_bits: int = 16) -> float:
    """`bytes_share` of a 4-bit copy with a 16-bit scale for each `group_size` weights, of experts stored in
    `expert_bits` a weight. Raises ConfigError for a group size that there is none of."""
    if group_size not in GROUP_SIZES:
        raise ConfigError("draft_group_size", group_size, f"one of {', '.join(map(str, GROUP_SIZES))}")
    return (4 + 16 / group_size) / expert_bits


@dataclass(slots=True, kw_only=True)
class DraftCount:
    """Over windows with a draft: tokens drafted and kept, distinct experts that verifications asked for, those of them
    that the draft's routers had chosen, and those that were resident when asked for. Seconds are virtual."""

    windows: int = 0
    drafted: int = 0
    kept: int = 0
    asked: int = 0
    foretold: int = 0
    hits: int = 0
    draft_s: float = 0.0

    @property
    def recall(self) -> float:
        return self.foretold / max(1, self.asked)

    @property
    def hit_rate(self) -> float:
        return self.hits / max(1, self.asked)


class SimWindow(NamedTuple):
    """Rows first .. first + drafted of the trace are verified, the first `kept` + 1 of them for good. In each of
    `drafted` steps the draft's routers choose drafted_LSK. Nothing is drafted for a prompt."""

    first: int
    rows: int
    kept: int
    drafted_LSK: Array

    @property
    def drafted(self) -> int:
        return int(self.drafted_LSK.shape[1])

    @property
    def tokens(self) -> int:
        """Rows of the trace that are done with it."""
        return self.kept + 1 if self.drafted else self.rows


def windows(trace: RouteTrace, mode: Mode, draft: SimDraft, seed: int) -> Iterator[SimWindow]:
    """One sequence after the other. What is kept does not depend on the recall."""
    random, mistakes = np.random.default_rng(seed), np.random.default_rng((seed, 1))
    ids_LTK = trace.expert_ids.astype(np.int32)
    ends = trace.sequence_start.tolist()
    done = 0
    for ((first, end),) in forwards(trace, mode, 1):
        if first < done:
            continue
        sequence_end = next(each for each in ends if each > first)
        steps = 0 if end - first > 1 else min(draft.tokens, sequence_end - first - 1)
        kept = 0
        while kept < steps and random.random() < draft.accept:
            kept += 1
        drafted_LSK = _mistaken(ids_LTK[:, first : first + steps], trace.num_experts, draft.recall, mistakes)
        window = SimWindow(first, steps + 1 if steps else end - first, kept, drafted_LSK)
        done = first + window.tokens
        yield window


def _mistaken(ids_LSK: Array, num_experts: int, recall: float, random: np.random.Generator) -> Array:
    """A share of the choices replaced by others."""
    if recall == 1:
        return ids_LSK
    wrong_LSK = random.random(ids_LSK.shape) >= recall
    others_LSK = (ids_LSK + random.integers(1, num_experts, ids_LSK.shape, dtype=np.int32)) % num_experts
    return np.where(wrong_LSK, others_LSK, ids_LSK).astype(np.int32)
