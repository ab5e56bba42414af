"""Simulations under way, and the results that they come to."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from smoe.core.route_trace import RouteTrace
from smoe.core.stats import ExpertStats
from smoe.offload.cache import Residency
from smoe.offload.planner import Planner
from smoe.offload.policies.protocols import Array, Routing
from smoe.sim.compute import ComputeModel
from smoe.sim.drafts import DraftCount, SimDraft, windows
from smoe.sim.forwards import Mode, forwards
from smoe.sim.link import Link
from smoe.sim.passes import Forward, blocks
from smoe.sim.replay import Replay
from smoe.sim.result import SimResult
from smoe.sim.speculation import LinkPrefetcher, Speculation
from smoe.sim.stacked import StackedLink


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a result repeats of what was asked for."""

    policy: str
    capacity: str
    pool: str
    mode: Mode
    batch: int
    num_slots: int
    expert_bytes: int


class Instant(Protocol):
    """A cache that takes whole passes; an InstantCache is one."""

    needs_routing: bool
    needs_lookahead: bool
    transfers: int

    @property
    def peak_used(self) -> int: ...

    def begin_forward(self) -> None: ...

    def run_layer(
        self, layer: int, experts: Sequence[int], routing: Routing | None = None, lookahead: Array | None = None
    ) -> None: ...

    def stats(self) -> ExpertStats: ...

    def check_integrity(self) -> None: ...


class InstantRun:
    """Transfers take no time."""

    def __init__(self, setting: Setting, trace: RouteTrace, cache: Instant) -> None:
        self.setting, self.cache = setting, cache
        self._trace, self._forwards = trace, 0

    def play(self, block: Sequence[Forward]) -> None:
        cache = self.cache
        self._forwards += len(block)
        run_layer = cache.run_layer
        for forward in block:
            cache.begin_forward()
            for layer, experts, routing, lookahead in forward:
                run_layer(layer, experts, routing, lookahead)

    def result(self) -> SimResult:
        cache = self.cache
        cache.check_integrity()
        return _result(
            self.setting, self._trace, cache.stats(), self._forwards, transfers=cache.transfers, peak=cache.peak_used
        )


class SteppedRun:
    """On a virtual link, step by step as the engine does."""

    def __init__(
        self,
        setting: Setting,
        trace: RouteTrace,
        residency: Residency,
        planner: Planner,
        link: Link,
        compute: ComputeModel,
        *,
        timed: bool,
        draft: SimDraft | None = None,
        seed: int = 0,
    ) -> None:
        """Times are in the result where it is `timed`. What a `draft` gets wrong is drawn from `seed`."""
        self.setting = setting
        self._trace, self._residency, self._planner, self._timed = trace, residency, planner, timed
        self._link = link
        self.replay = Replay(trace, planner, link, compute)
        self._draft, self._seed, self._speculation = draft, seed, None
        if draft is not None:
            prefetcher = LinkPrefetcher(
                self.replay, planner, residency, link, trace.layers, max(1, setting.expert_bytes)
            )
            self._speculation = Speculation(trace, draft, self.replay, planner, prefetcher)

    def play(self) -> Iterator[int]:
        """Tokens that each forward took."""
        if self._draft is not None and self._speculation is not None:
            yield from self._speculation.play(windows(self._trace, self.setting.mode, self._draft, self._seed))
            return
        for spans in forwards(self._trace, self.setting.mode, self.setting.batch):
            self.replay.forward(spans, prompt=any(end - start > 1 for start, end in spans))
            yield sum(end - start for start, end in spans)

    def result(self) -> SimResult:
        residency, planner, replay, link = self._residency, self._planner, self.replay, self._link
        for view in link.arrivals(float("inf")):
            planner.arrived(view)
        residency.check_idle()
        stats = replace(planner.stats(), wait_s=replay.wait_s)
        return _result(
            self.setting,
            self._trace,
            stats,
            replay.forwards,
            transfers=replay.transfers,
            peak=residency.peak_used,
            seconds=replay.now if self._timed else None,
            prompt_s=replay.prompt_s if self._timed else None,
            busy_s=link.busy_s,
            from_disk=link.from_disk if isinstance(link, StackedLink) else None,
            draft=None if self._speculation is None else self._speculation.count,
        )


def play(
    trace: RouteTrace, runs: Sequence[InstantRun | SteppedRun], on_progress: Callable[[int], None] | None = None
) -> None:
    """All to their end. Instant ones of one mode and batch go side by side, so that passes are made once for all.

    `on_progress` gets the tokens done so far, summed over the runs.
    """
    done = 0
    together: dict[tuple[Mode, int], list[InstantRun]] = {}
    for run in runs:
        if isinstance(run, InstantRun):
            together.setdefault((run.setting.mode, run.setting.batch), []).append(run)
            continue
        for tokens in run.play():
            done += tokens
            if on_progress is not None:
                on_progress(done)
    for (mode, batch), group in together.items():
        routing = any(run.cache.needs_routing for run in group)
        lookahead = any(run.cache.needs_lookahead for run in group)
        for tokens, block in blocks(trace, mode, batch, routing=routing, lookahead=lookahead):
            for run in group:
                run.play(block)
                done += tokens
                if on_progress is not None:
                    on_progress(done)


def _result(
    setting: Setting,
    trace: RouteTrace,
    stats: ExpertStats,
    forwards_done: int,
    *,
    transfers: int,
    peak: int,
    seconds: float | None = None,
    prompt_s: float | None = None,
    busy_s: float = 0.0,
    from_disk: int | None = None,
    draft: DraftCount | None = None,
) -> SimResult:
    """`from_disk` of the transfers came over two links, the others over the last one alone; None: there is one."""
    size = setting.expert_bytes
    if from_disk is not None:
        stats = replace(stats, disk_transfers=from_disk, disk_bytes=from_disk * size)
        stats = replace(stats, host_transfers=transfers, host_bytes=transfers * size)
    return SimResult(
        policy=setting.policy,
        capacity=setting.capacity,
        pool=setting.pool,
        mode=setting.mode,
        batch=setting.batch,
        num_slots=setting.num_slots,
        num_layers=len(trace.layers),
        num_experts=trace.num_experts,
        forwards=forwards_done,
        tokens=trace.num_tokens,
        experts=replace(
            stats, bytes_moved=transfers * size, budget_bytes=setting.num_slots * size, peak_bytes=peak * size
        ),
        transfers=transfers,
        seconds=seconds,
        prompt_s=prompt_s,
        link_busy_share=None if seconds is None else busy_s / (seconds or 1.0),  # it was idle if no time passed
        draft=draft,
    )
