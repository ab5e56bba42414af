"""The draft loop in virtual time: the same Planner and DraftWindow as the engine's."""

from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np

from smoe.core.route_trace import RouteTrace
from smoe.offload.cache import Residency
from smoe.offload.planner import Planner
from smoe.offload.policies.protocols import Key
from smoe.offload.window import make_window
from smoe.sim.drafts import DraftCount, SimDraft, SimWindow
from smoe.sim.link import Link
from smoe.sim.replay import Replay


class LinkPrefetcher:
    """A Prefetcher over a simulated link."""

    def __init__(
        self,
        replay: Replay,
        planner: Planner,
        residency: Residency,
        link: Link,
        layers: Sequence[int],
        expert_bytes: int,
    ) -> None:
        self._replay, self._planner, self._residency = replay, planner, residency
        self._link, self._layers, self._expert_bytes = link, layers, expert_bytes

    @property
    def slots_a_layer(self) -> int:
        return self._residency.num_slots // len(self._layers)

    @property
    def bytes_per_second(self) -> float:
        return self._expert_bytes / self._link.transfer_s if self._link.transfer_s else float("inf")

    def prefetch(self, keys: Sequence[Key]) -> int:
        before = self._planner.submitted
        self._replay.prefetch(keys)
        return (self._planner.submitted - before) * self._expert_bytes

    def poll(self) -> None:
        self._replay.poll()

    def resident(self) -> Collection[Key]:
        return {(layer, expert) for layer in self._layers for expert in self._residency.resident(layer)}


class Speculation:
    """Plays windows on a Replay, whose clock runs on while it drafts."""

    def __init__(
        self, trace: RouteTrace, draft: SimDraft, replay: Replay, planner: Planner, prefetcher: LinkPrefetcher
    ) -> None:
        self.count = DraftCount()
        self._trace, self._step_s, self._replay, self._planner = trace, draft.step_s, replay, planner
        self._window = make_window(draft.timing, prefetcher, trace.layers, trace.num_experts, draft.rule)

    def play(self, windows: Iterable[SimWindow]) -> Iterator[int]:
        """Rows of the trace that are done with each."""
        for window in windows:
            if window.drafted:
                self._draft(window)
            hits = self._planner.stats().hits
            prompt = not window.drafted and window.rows > 1
            self._replay.forward([(window.first, window.first + window.rows)], prompt=prompt)
            if window.drafted:
                self.count.hits += self._planner.stats().hits - hits
            yield window.tokens

    def _draft(self, window: SimWindow) -> None:
        count, replay, step_s = self.count, self._replay, self._step_s
        self._window.begin(window.drafted)
        for step in range(window.drafted):
            for place, layer in enumerate(self._trace.layers):
                self._window.routed(layer, window.drafted_LSK[place, step : step + 1])
            replay.now += step_s
            self._window.after_step(step_s)
        self._window.before_verify()
        count.windows += 1
        count.drafted += window.drafted
        count.kept += window.kept
        count.draft_s += window.drafted * step_s
        verified_LRK = self._trace.expert_ids[:, window.first : window.first + window.rows]
        for drafted, verified in zip(window.drafted_LSK, verified_LRK, strict=True):
            asked = np.unique(verified)
            count.asked += len(asked)
            count.foretold += len(np.intersect1d(asked, drafted))
