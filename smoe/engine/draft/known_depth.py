"""How far to draft, as `smoe profile depth` found it: a JSON file a model, draft and host, under $XDG_CACHE_HOME."""

import json
import os
import platform
import re
from pathlib import Path
from typing import Any

from smoe.core.cache_root import cache_root
from smoe.core.draft import LOOKUP_DRAFT, MAX_TOKENS, SELF_DRAFT, DraftConfig
from smoe.models.loading import open_checkpoint

AUTO_TOKENS = 8  # where nothing has been measured
ONLINE_TOKENS = MAX_TOKENS  # at most: the run expected of a draft that is right 64 times in 65


def most_draft_tokens(draft: DraftConfig, fingerprint: str) -> int:
    """How many tokens may be drafted for a sequence in one step, of the model with this fingerprint."""
    if draft.tokens == "online":
        return ONLINE_TOKENS
    if draft.tokens != "auto":
        return draft.tokens
    found = known_depth(draft, fingerprint)
    return AUTO_TOKENS if found is None else found


def known_depth(draft: DraftConfig, fingerprint: str) -> int | None:
    """None when it has not been measured here. A file that says nothing sensible counts as none."""
    try:
        record = json.loads(depth_file(draft, fingerprint).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    tokens = record.get("tokens") if isinstance(record, dict) else None
    return tokens if isinstance(tokens, int) and 1 <= tokens <= MAX_TOKENS else None


def keep_depth(draft: DraftConfig, fingerprint: str, record: dict[str, Any]) -> Path:
    """`record["tokens"]` is what `known_depth` gives from now on. Raises OSError."""
    path = depth_file(draft, fingerprint)
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = path.with_suffix(f".{os.getpid()}")
    whole.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    whole.replace(path)
    return path


def depth_file(draft: DraftConfig, fingerprint: str) -> Path:
    folder = cache_root() / "depth"
    host = re.sub(r"[^A-Za-z0-9.-]", "_", platform.node())
    return folder / f"{fingerprint}-{_name(draft)}-{host}.json"


def _name(draft: DraftConfig) -> str:
    if draft.model == SELF_DRAFT:
        return f"{SELF_DRAFT}-g{draft.group_size}{'-residual' if draft.residual else ''}"
    return LOOKUP_DRAFT if draft.model == LOOKUP_DRAFT else open_checkpoint(draft.model).fingerprint
