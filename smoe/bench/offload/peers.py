"""Peers under one memory limit, each in its own process, page cache dropped before each, smoe before and after them."""

import importlib.util
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from smoe.bench.offload.limit import MemoryLimit, drop_page_cache
from smoe.bench.offload.measure import decode
from smoe.bench.offload.process import Process, one_line
from smoe.bench.offload.sample import Sample
from smoe.bench.result import Figure

GOAL_RATIO = 10.0
OWN = "smoe"


@dataclass(slots=True)
class Peer:
    """What one contender did under the limit; `reason` says why there is nothing, or what was not limited."""

    samples: list[Sample] = field(default_factory=list)
    reason: str = ""
    limited: bool = False
    peak_bytes: int = 0

    @property
    def tokens_per_s(self) -> float | None:
        return median(1 / s.mean_step_s for s in self.samples) if self.samples else None

    def to_json(self) -> dict[str, Any]:
        return {"limited": self.limited, "reason": self.reason, "samples": [s.to_json() for s in self.samples]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    folder: Path
    scratch: Path
    limit_bytes: int
    prompts: Sequence[Sequence[int]]
    tokens: int
    threads: int


def take_turn(setting: Setting, peer: Peer, turn: Callable[[Setting, Peer], None]) -> None:
    """Whatever goes wrong, in making the peer's files as well, becomes its reason: what others measured is kept."""
    try:
        turn(setting, peer)
    except Exception as error:
        peer.reason = one_line(error)


def run_own(setting: Setting, peer: Peer, config: dict[str, Any]) -> None:
    def start(limit_folder: str | None) -> Process:
        return Process("smoe.bench.offload.own", [json.dumps({**config, "limit_folder": limit_folder})])

    _run(peer, setting, list(setting.folder.glob("*.safetensors")), start)


def run_accelerate(setting: Setting, peer: Peer) -> None:
    if importlib.util.find_spec("accelerate") is None:
        peer.reason = "accelerate is not installed (the extra `bench` has it)"
        return
    scratch = setting.scratch / "accelerate"
    scratch.mkdir(parents=True, exist_ok=True)
    arguments = [str(setting.folder), str(scratch)]
    _run(peer, setting, [], lambda _: Process("smoe.bench.offload.accelerate_peer", arguments))


def run_llama(setting: Setting, peer: Peer) -> None:
    missing = [name for name in ("llama_cpp", "gguf") if importlib.util.find_spec(name) is None]
    if missing:
        peer.reason = f"not installed: {', '.join(missing)} (the extra `llama` has both)"
        return
    path = setting.scratch / "model.gguf"
    if not path.exists():
        from smoe.bench.offload.gguf_file import write_gguf

        setting.scratch.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        write_gguf(setting.folder, partial)
        partial.rename(path)
    _run(peer, setting, [path], lambda _: Process("smoe.bench.offload.llama_peer", [str(path), str(setting.threads)]))


def _run(peer: Peer, setting: Setting, files: list[Path], start: Callable[[str | None], Process]) -> None:
    """One process through every prompt, under a group of its own."""
    drop_page_cache(files)
    with MemoryLimit(setting.limit_bytes) as limit:
        folder = None if limit.folder is None else str(limit.folder)
        peer.limited, peer.reason = limit.folder is not None, limit.reason
        with start(folder) as process:
            try:
                process.ask({"op": "open", "limit_folder": folder})
                for prompt in setting.prompts:
                    peer.samples.append(decode(process, prompt, setting.tokens))
            finally:
                peer.peak_bytes = max(peer.peak_bytes, limit.peak_bytes or 0)


def figures(own: Peer, peers: dict[str, Peer], limit_bytes: int, percent: float) -> list[Figure]:
    limit = f"{limit_bytes / 1e9:g} GB" if own.limited else f"no limit ({own.reason}); only the page cache was dropped"
    rate = own.tokens_per_s
    found = [
        Figure(
            figure=f"{percent:g} % resident under {limit}: {OWN}",
            value=rate,
            unit="tokens/s",
            bound=own.reason or f"peak with page cache {own.peak_bytes / 1e6:.0f} MB",
        )
    ]
    for name, peer in peers.items():
        theirs = peer.tokens_per_s
        ratio = None if rate is None or theirs is None else rate / theirs
        spread = "" if theirs is None else f"{name}: {1000 / theirs:.0f} ms a token"
        found.append(
            Figure(
                figure=f"{percent:g} % resident under {limit}: ratio to {name}",
                value=ratio,
                unit="x",
                goal=f">= {GOAL_RATIO:g}x",
                met=None if ratio is None else ratio >= GOAL_RATIO,
                bound="; ".join(part for part in (spread, peer.reason) if part),
            )
        )
    return found
