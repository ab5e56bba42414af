"""Runner: carries out step plans on one device: batch, forward, sampling."""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch

from smoe.collectives.world import World
from smoe.core.errors import ConfigError, StoreError
from smoe.core.model_info import ModelInfo
from smoe.core.stats import ExpertStats
from smoe.core.step import SampledToken, SpanPlan, StepPlan, StepResult, Substituted
from smoe.engine.recorder import RouteRecorder
from smoe.engine.sampler import sample
from smoe.models.bank import ExpertBank, ResidentBank
from smoe.models.batch import Batch
from smoe.models.kv import KVCache
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
    ) -> None:
        """`resize` gives experts another size of memory, or raises ConfigError; None where none can be had. With a
        `world` this is one of its ranks: all execute every plan, each the spans of its data-parallel `group` (None: all
        spans), and those that `samples` is set for say the tokens of their group.
        """
        self._decoder, self._kv, self._bank, self._info = decoder, kv, bank, info
        self._device, self._recorder = device, recorder
        delta = [i for i, layer in enumerate(decoder.spec.layers) if isinstance(layer.attention, DeltaSpec)]
        # KV rows can be written twice, a recurrent state cannot: a step that may fail halfway needs a copy to retry.
        self._fragile_layers = [] if isinstance(bank, ResidentBank) else delta
        self._closed = False
        self._world, self._resize = world, resize
        self._group, self._samples = group, samples

    def info(self) -> ModelInfo:
        return self._info

    @property
    def kv_rows(self) -> int:
        return self._kv.num_rows

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        if self._recorder is not None:
            self._recorder.next_step(plan)
        if self._group is not None:
            return self._execute_own(plan, self._group)
        saved = self._save_states(plan.spans)
        try:
            return self._execute(plan)
        except StoreError as error:
            if len(plan.spans) == 1:
                return StepResult(tokens=((SampledToken(None, error=f"store: {error}"),),))
        self._restore_states(plan.spans, saved)
        alone = [self._execute_alone(span) for span in plan.spans]
        nothing = Substituted(0, 0.0)
        return StepResult(
            tokens=tuple(result.tokens[0] for result in alone),
            substituted=tuple(result.substituted[0] if result.substituted else nothing for result in alone),
        )

    def expert_stats(self) -> ExpertStats:
        return self._bank.stats()

    def resize_experts(self, memory: str) -> int | ConfigError:
        if self._resize is None:
            return ConfigError("expert_memory", memory, "can be resized only with expert_memory_max, and below `all`")
        try:
            return self._resize(memory)
        except ConfigError as error:
            return error

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
            if self._world is not None:
                self._world.close()

    def _execute(self, plan: StepPlan) -> StepResult:
        recorder, spans = self._recorder, plan.spans
        batch_spans: list[tuple[list[int] | tuple[int, ...], int, int, int]]
        batch_spans = [(span.token_ids, span.kv_start, span.past, span.state_slot) for span in spans]
        logit_rows: list[int] = []
        row = -1
        for span in spans:
            row += len(span.token_ids)
            if span.sample is not None:
                logit_rows.append(row)
        sink = None if recorder is None else recorder.begin(plan)
        # A step of prompt chunks alone wants no logits; one row keeps every shape non-empty.
        wanted = logit_rows or ([row] if spans else [])
        prompt_lens = [span.prompt_len for span in spans]
        batch = Batch.build(
            batch_spans, logit_rows=wanted, prompt_lens=prompt_lens, device=self._device, route_sink=sink
        )
        logits_MV = self._decoder.forward(batch, self._kv)
        if recorder is not None:
            recorder.commit(plan)
        draws = [(s.sample, s.seed, s.sample_index) for s in spans if s.sample is not None and self._samples]
        substituted = self._substituted(spans)
        if not draws:
            return StepResult(tokens=((),) * len(spans), substituted=substituted)
        sampled = iter(sample(logits_MV, draws))
        tokens = tuple([() if span.sample is None else (next(sampled),) for span in spans])
        return StepResult(tokens=tokens, substituted=substituted)

    def _execute_own(self, plan: StepPlan, group: int) -> StepResult:
        """Without a span of its own too: the experts here are the others' as well."""
        own = [i for i, span in enumerate(plan.spans) if span.group == group]
        result = self._execute(StepPlan(spans=tuple([plan.spans[i] for i in own])))
        tokens: list[tuple[SampledToken, ...]] = [()] * len(plan.spans)
        for i, answer in zip(own, result.tokens, strict=True):
            tokens[i] = answer
        return StepResult(tokens=tuple(tokens))

    def _execute_alone(self, span: SpanPlan) -> StepResult:
        try:
            return self._execute(StepPlan(spans=(span,)))
        except StoreError as error:
            return StepResult(tokens=((SampledToken(None, error=f"store: {error}"),),))

    def _substituted(self, spans: Sequence[SpanPlan]) -> tuple[Substituted, ...]:
        """What the forward just run replaced, by span."""
        by_row = self._bank.substitutions()
        if by_row is None:
            return ()
        firsts = np.cumsum([0, *(len(span.token_ids) for span in spans[:-1])])
        slots, mass = np.add.reduceat(by_row.slots_T, firsts), np.add.reduceat(by_row.mass_T, firsts)
        return tuple(Substituted(int(s), float(m)) for s, m in zip(slots, mass, strict=True))

    def _save_states(self, spans: Sequence[SpanPlan]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        if not self._fragile_layers:
            return []
        slots = [span.state_slot for span in spans]
        layers = [self._kv.layers[layer] for layer in self._fragile_layers]
        return [(cache.first[slots].clone(), cache.second[slots].clone()) for cache in layers]

    def _restore_states(self, spans: Sequence[SpanPlan], saved: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        slots = [span.state_slot for span in spans]
        for layer, (first, second) in zip(self._fragile_layers, saved, strict=True):
            self._kv.layers[layer].first[slots] = first
            self._kv.layers[layer].second[slots] = second
