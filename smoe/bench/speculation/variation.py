"""One engine whose INT4 draft is changed between runs: when it prefetches, whose routes it tells, what it shares."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from smoe.bench.speculation.measure import Engine
from smoe.bench.speculation.setting import DTYPE, Setting
from smoe.core.draft import PrefetchTiming
from smoe.core.step import SpanPlan
from smoe.engine.draft.depth import Depth, FixedDepth, OnlineDepth
from smoe.engine.draft.loop import DraftLoop
from smoe.engine.draft.pace import Pace
from smoe.engine.draft.protocol import Drafter, Proposal
from smoe.engine.draft.self_draft import SelfDraft
from smoe.models.kv import KVCache
from smoe.offload.drafting import DraftWindow
from smoe.offload.window import make_window

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variation:
    """Of a draft as it is. `noise` is the share of the choices told to its window that are any of the layer instead;
    `copied_kv`: rows of the model are copied before each window instead of being read where they are; `online`: how far
    is chosen as it goes; without `hits_first` a pass computes nothing before its misses have come."""

    name: str
    timing: PrefetchTiming = "adaptive"
    noise: float = 0.0
    copied_kv: bool = False
    online: bool = False
    hits_first: bool = True


class Switch:
    """Of an engine with an INT4 draft."""

    def __init__(self, setting: Setting, engine: Engine, depth: int) -> None:
        speculation = engine.runner.speculation
        assert speculation is not None
        assert isinstance(speculation.drafter, SelfDraft)
        self._speculation, self._engine, self._depth = speculation, engine, depth
        self._setting, self._own = setting, speculation.drafter
        self._copying = CopyingDraft(self._own, setting)
        self.told = self.right = 0

    @property
    def copied_bytes(self) -> int:
        """So far, by variations that copy."""
        return self._copying.copied_bytes

    def use(self, variation: Variation, seed: int = 0) -> None:
        """From the next run on."""
        setting = self._setting
        window = make_window(variation.timing, self._engine.bank, setting.spec.moe_layers, setting.num_experts)
        if variation.noise:
            window = NoisyWindow(window, variation.noise, setting.num_experts, seed)
        self._own.use(window)
        self._copying.use(window)
        depth: Depth = OnlineDepth(self._depth) if variation.online else FixedDepth(self._depth)
        drafter: Drafter = self._copying if variation.copied_kv else self._own
        self._speculation.use(Pace(partial(_same, depth), auto_off=False), drafter)
        self._engine.bank.compute_hits_first(variation.hits_first)


class NoisyWindow:
    """A window that is told any expert of the layer instead of a share `noise` of the draft's choices."""

    def __init__(self, window: DraftWindow, noise: float, num_experts: int, seed: int) -> None:
        self._window, self._noise, self._num_experts = window, noise, num_experts
        self._random = np.random.default_rng(seed)

    def begin(self, steps: int) -> None:
        self._window.begin(steps)

    def routed(self, layer: int, ids_TK: Array) -> None:
        wrong_TK = self._random.random(ids_TK.shape) < self._noise
        any_TK = self._random.integers(0, self._num_experts, ids_TK.shape, dtype=ids_TK.dtype)
        self._window.routed(layer, np.where(wrong_TK, any_TK, ids_TK))

    def after_step(self, seconds: float) -> None:
        self._window.after_step(seconds)

    def before_verify(self) -> None:
        self._window.before_verify()


class CopyingDraft:
    """A self-draft over a KV cache of its own, into which the rows of the model are copied before each window."""

    def __init__(self, draft: SelfDraft, setting: Setting) -> None:
        loop = draft.loop
        self._from, self.copied_bytes = loop.kv, 0
        self._own = KVCache(setting.spec, num_rows=loop.kv.num_rows, num_states=loop.kv.num_states, dtype=DTYPE)
        self._draft = SelfDraft(DraftLoop(loop.decoder, self._own, window=loop.window), draft.bank)

    def use(self, window: DraftWindow) -> None:
        self._draft.use(window)

    def propose(self, spans: Sequence[SpanPlan], known: Sequence[Sequence[int]], limits: Sequence[int]) -> Proposal:
        for span in spans:
            rows = slice(span.kv_start, span.kv_start + span.past)
            for mine, theirs in zip(self._own.layers, self._from.layers, strict=True):
                for own, model in ((mine.first, theirs.first), (mine.second, theirs.second)):
                    own[rows] = model[rows]
                    self.copied_bytes += own[rows].nbytes
        return self._draft.propose(spans, known, limits)

    def accepted(self, spans: Sequence[SpanPlan], counts: Sequence[int]) -> None:
        self._draft.accepted(spans, counts)

    def forget(self, request_id: str) -> None:
        self._draft.forget(request_id)

    def close(self) -> None:
        self._draft.close()


def _same(depth: Depth) -> Depth:
    return depth
