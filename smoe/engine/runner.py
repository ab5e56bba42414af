"""Runner: carries out step plans on one device: batch, forward, sampling."""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from smoe.collectives.world import World
from smoe.core.errors import ConfigError, SmoeError, StoreError
from smoe.core.model_info import ModelInfo
from smoe.core.parallel import ONE_DEVICE
from smoe.core.placement import Placement
from smoe.core.stats import ExecutorStats, RoutingStats, TrafficStats
from smoe.core.step import ExpertsMoved, SampledToken, SpanPlan, StepPlan, StepResult, Substituted
from smoe.engine.draft.speculation import Speculation
from smoe.engine.recorder import RouteRecorder
from smoe.engine.sampler import on_host, sample
from smoe.engine.states import RecurrentStates, Replay, Saved
from smoe.models.bank import ExpertBank, ResidentBank
from smoe.models.batch import Batch
from smoe.models.kv import KVCache
from smoe.models.route_counts import RouteCounts
from smoe.models.spec import DecoderSpec, DeltaSpec


class Forward(Protocol):
    """The part of a Decoder that a runner uses."""

    spec: DecoderSpec

    def forward(self, batch: Batch, kv: KVCache) -> torch.Tensor: ...


class Runner:
    """An Executor (smoe.core.step) in this process; the calling thread computes.

    Expert weights that cannot be read end only the requests that need them. Any other exception leaves the KV
    cache in an unknown state: every sequence must prefill again.
    """

    def __init__(
        self,
        decoder: Forward,
        kv: KVCache,
        bank: ExpertBank,
        info: ModelInfo,
        *,
        device: torch.device | str = "cpu",
        recorder: RouteRecorder | None = None,
        world: World | None = None,
        group: int | None = None,
        samples: bool = True,
        resize: Callable[[str], int] | None = None,
        place: Callable[[Placement, str], ExpertsMoved | SmoeError] | None = None,
        speculation: Speculation | None = None,
        unread: Callable[[], str | None] | None = None,
        counts: RouteCounts | None = None,
    ) -> None:
        """`resize` gives experts another size of memory, or raises ConfigError; None where none can be had. With a
        `world` this is one of its ranks: all execute every plan, each the spans of its data-parallel `group` (None: all
        spans), and those that `samples` is set for say the tokens of their group; `unread` tells what experts this
        rank could not read in the forward run last. `counts` are those of the decoder's routers.
        """
        self._decoder, self._kv, self._bank, self._info = decoder, kv, bank, info
        self._device, self._recorder = device, recorder
        delta = [i for i, layer in enumerate(decoder.spec.layers) if isinstance(layer.attention, DeltaSpec)]
        # KV rows can be written twice, a recurrent state cannot: a step that may fail halfway, or whose last rows may
        # not hold, needs a copy.
        fragile = speculation is not None or not isinstance(bank, ResidentBank)
        self._states = RecurrentStates(kv, delta if fragile else [])
        self.speculation = speculation
        self._closed = False
        self._world, self._resize, self._place = world, resize, place
        self._unread, self._counts = unread, counts
        self._group, self._samples = group, samples

    def info(self) -> ModelInfo:
        return self._info

    @property
    def bank(self) -> ExpertBank:
        return self._bank

    @property
    def kv_rows(self) -> int:
        return self._kv.num_rows

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        if self._recorder is not None:
            self._recorder.next_step(plan)
        if self._group is not None:
            return self._execute_own(plan, self._group)
        saved = self._states.save(plan.spans)
        try:
            return self._execute(plan) if self.speculation is None else self._speculate(plan, saved, self.speculation)
        except StoreError as error:
            if len(plan.spans) == 1 and plan.spans[0].draft_limit == 0:
                return StepResult(tokens=((SampledToken(None, error=f"store: {error}"),),))
        # Alone and without a draft: what only others, or tokens that may be wrong, need has to end nothing.
        self._states.restore(plan.spans, saved)
        alone = [self._execute_alone(span) for span in plan.spans]
        nothing = Substituted(0, 0.0)
        return StepResult(
            tokens=tuple(result.tokens[0] for result in alone),
            substituted=tuple(result.substituted[0] if result.substituted else nothing for result in alone),
        )

    def stats(self) -> ExecutorStats:
        routing = RoutingStats() if self._counts is None else self._counts.stats()
        traffic = TrafficStats() if self._world is None else self._world.ledger.stats()
        return ExecutorStats(experts=self._bank.stats(), routing=routing, traffic=traffic)

    def resize_experts(self, memory: str) -> int | ConfigError:
        if self._resize is None:
            return ConfigError("expert_memory", memory, "can be resized only with expert_memory_max, and below `all`")
        try:
            return self._resize(memory)
        except ConfigError as error:
            return error

    def apply_placement(self, placement: Placement, name: str) -> ExpertsMoved | SmoeError:
        return ConfigError("placement", name, ONE_DEVICE) if self._place is None else self._place(placement, name)

    def check_integrity(self) -> None:
        if not self._closed:
            self._bank.check_integrity()

    def shutdown(self) -> None:
        """Writes the recorded routes and frees the experts. Idempotent."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._recorder is not None:
                self._recorder.write()
        finally:
            self._bank.close()
            if self.speculation is not None:
                self.speculation.close()
            if self._world is not None:
                self._world.close()

    def _execute(self, plan: StepPlan) -> StepResult:
        logits_MV = self._forward(plan)
        spans = plan.spans
        held = [len(span.token_ids) for span in spans]
        if self._recorder is not None:
            self._recorder.commit(plan, held)
        draws = [(s.sample, s.seed, s.sample_index) for s in spans if s.sample is not None and self._samples]
        substituted = self._substituted(spans, held)
        if not draws:
            return StepResult(tokens=((),) * len(spans), substituted=substituted)
        sampled = iter(sample(logits_MV, draws))
        tokens = tuple([() if span.sample is None else (next(sampled),) for span in spans])
        return StepResult(tokens=tokens, substituted=substituted)

    def _speculate(self, plan: StepPlan, saved: Saved, speculation: Speculation) -> StepResult:
        """One window; `saved` are the recurrent states before it, which drafting may carry on."""
        window = speculation.open(plan)
        spans, replay = window.plan.spans, None
        if self._states and window.num_drafted:
            self._states.restore(spans, saved)
            replay = Replay([len(span.token_ids) for span in spans], [i for i, run in enumerate(window.drafted) if run])
        logits_MV = self._forward(window.plan, window.drafted, replay)
        tokens = speculation.judge(window, *on_host(logits_MV))
        held = [
            len(span.token_ids) - len(run) + max(0, len(answer) - 1)
            for span, run, answer in zip(spans, window.drafted, tokens, strict=True)
        ]
        if replay is not None:
            for i, span in enumerate(spans):
                if held[i] < len(span.token_ids):
                    self._states.restore_one(spans, saved, i)
                    replay.run(i, held[i], span.past, span.state_slot)
        if self._recorder is not None:
            self._recorder.commit(window.plan, held)
        substituted = self._substituted(spans, held)
        return StepResult(tokens=tokens, substituted=substituted, draft=speculation.settle(window, tokens))

    def _forward(
        self, plan: StepPlan, drafted: Sequence[Sequence[int]] | None = None, replay: Replay | None = None
    ) -> torch.Tensor:
        """Logits of each sampling span's last row, and of as many before it as it has drafted tokens."""
        spans = plan.spans
        logit_rows: list[int] = []
        row = -1
        for i, span in enumerate(spans):
            row += len(span.token_ids)
            if span.sample is not None:
                logit_rows.extend(range(row - (len(drafted[i]) if drafted else 0), row + 1))
        batch = Batch.build(
            [(span.token_ids, span.kv_start, span.past, span.state_slot) for span in spans],
            # A step of prompt chunks alone wants no logits; one row keeps every shape non-empty.
            logit_rows=logit_rows or ([row] if spans else []),
            prompt_lens=[span.prompt_len for span in spans],
            device=self._device,
            route_sink=None if self._recorder is None else self._recorder.begin(plan),
            delta_sink=None if replay is None else replay.sink,
        )
        return self._decoder.forward(batch, self._kv)

    def _execute_own(self, plan: StepPlan, group: int) -> StepResult:
        """Without a span of its own too: the experts here are the others' as well."""
        own = [i for i, span in enumerate(plan.spans) if span.group == group]
        result = self._execute(StepPlan(spans=tuple([plan.spans[i] for i in own])))
        tokens: list[tuple[SampledToken, ...]] = [()] * len(plan.spans)
        for i, answer in zip(own, result.tokens, strict=True):
            tokens[i] = answer
        substituted = [Substituted(0, 0.0)] * (len(plan.spans) if result.substituted else 0)
        for i, replaced in zip(own, result.substituted, strict=False):
            substituted[i] = replaced
        unread = None if self._unread is None else self._unread()
        return StepResult(tokens=tuple(tokens), substituted=tuple(substituted), unread=unread)

    def _execute_alone(self, span: SpanPlan) -> StepResult:
        try:
            return self._execute(StepPlan(spans=(span,)))
        except StoreError as error:
            return StepResult(tokens=((SampledToken(None, error=f"store: {error}"),),))

    def _substituted(self, spans: Sequence[SpanPlan], held: Sequence[int]) -> tuple[Substituted, ...]:
        """What the forward just run replaced, by span, in the rows that hold."""
        by_row = self._bank.substitutions()
        if by_row is None:
            return ()
        found, first = [], 0
        for span, count in zip(spans, held, strict=True):
            rows = slice(first, first + count)
            first += len(span.token_ids)
            found.append(Substituted(int(by_row.slots_T[rows].sum()), float(by_row.mass_T[rows].sum())))
        return tuple(found)
