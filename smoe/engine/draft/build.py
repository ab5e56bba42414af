"""From a configuration to a draft."""

from functools import partial

from smoe.core.draft import LOOKUP_DRAFT, DraftConfig
from smoe.engine.draft.depth import Depth, FixedDepth, OnlineDepth
from smoe.engine.draft.lookup import NgramDraft
from smoe.engine.draft.pace import Pace
from smoe.engine.draft.protocol import Drafter
from smoe.engine.draft.speculation import Speculation

AUTO_TOKENS = 8  # where `smoe profile depth` has not measured
ONLINE_TOKENS = 32  # at most: the run expected of a draft that is right 29 times in 30


def most_draft_tokens(draft: DraftConfig) -> int:
    """How many tokens may be drafted for a sequence in one step."""
    if draft.tokens == "online":
        return ONLINE_TOKENS
    return AUTO_TOKENS if draft.tokens == "auto" else draft.tokens


def make_speculation(draft: DraftConfig) -> Speculation:
    depth = partial(_depth, draft.tokens == "online", most_draft_tokens(draft))
    return Speculation(_drafter(draft), Pace(depth, auto_off=draft.auto_off))


def _depth(online: bool, most: int) -> Depth:
    return OnlineDepth(most) if online else FixedDepth(most)


def _drafter(draft: DraftConfig) -> Drafter:
    assert draft.model == LOOKUP_DRAFT
    return NgramDraft()
