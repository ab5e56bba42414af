"""EngineCore: requests in, deltas out, one step at a time, over whatever executes steps."""

import logging
import random
from collections.abc import Callable, Sequence

from smoe.core.errors import ConfigError, SmoeError
from smoe.core.model_info import ModelInfo
from smoe.core.placement import Placement
from smoe.core.request import Delta, Request
from smoe.core.stats import DraftStats, EngineStats
from smoe.core.step import Executor, ExpertsMoved
from smoe.engine.answer import Answer
from smoe.engine.random import derive_seed
from smoe.engine.rss import read_rss
from smoe.engine.tokenizer import Tokenizer
from smoe.engine.validate import RequestValidator
from smoe.sched.routing import Affinity
from smoe.sched.scheduler import Scheduler
from smoe.sched.sequence import Sequence as SchedSequence

log = logging.getLogger(__name__)


class EngineCore:
    """A plain, single-threaded object: whoever owns it calls `step` while `has_work`.

    `record_fraction` of the requests (chosen by `seed`) are marked for the executor's route recorder.
    """

    def __init__(
        self,
        executor: Executor,
        tokenizer: Tokenizer | None,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        seed: int = 0,
        record_fraction: float = 0.0,
        num_groups: int = 1,
        affinity: Affinity | None = None,
        affinity_of: Callable[[Placement], Affinity] | None = None,
    ) -> None:
        """`num_groups` data-parallel groups behind the executor share the requests; see Scheduler for the limits.

        `affinity_of` makes a new `affinity` when another placement is applied.
        """
        self.executor, self.tokenizer = executor, tokenizer
        self._info = executor.info()
        self._validator = RequestValidator(self._info, executor.kv_rows, has_tokenizer=tokenizer is not None)
        self._scheduler = Scheduler(
            kv_rows=executor.kv_rows,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            eos_token_ids=self._info.eos_token_ids,
            num_groups=num_groups,
            affinity=affinity,
            draft_tokens=self._info.draft_tokens,
        )
        self._affinity_of = affinity_of
        self._applied: tuple[Placement, str] | None = None
        self._answers: dict[str, Answer] = {}
        self._ended: list[Delta] = []
        self._seed, self._num_added = seed, 0
        self._record_fraction, self._record_draws = record_fraction, random.Random(seed)
        self._prompt_tokens = self._generated_tokens = self._steps = 0
        self._draft = DraftStats()

    def info(self) -> ModelInfo:
        return self._info

    @property
    def has_work(self) -> bool:
        """A request is in flight, or a delta waits to be collected by `step`."""
        return bool(self._answers or self._ended or self._scheduler.has_work)

    def check(self, requests: Sequence[Request]) -> None:
        """Raises the RequestError that `add` would raise. Safe to call while another thread steps."""
        self._validator.check(requests, self._answers)

    def add(self, requests: Sequence[Request]) -> None:
        """Queues all of them, or none: raises RequestError at the first that can never run."""
        limits = self._validator.check(requests, self._answers)
        for request, max_tokens in zip(requests, limits, strict=True):
            params, prompt = request.params, request.prompt_token_ids
            sequence = SchedSequence(
                request_id=request.request_id,
                token_ids=list(prompt),
                num_prompt=len(prompt),
                max_tokens=max_tokens,
                params=params,
                seed=derive_seed(self._seed, self._num_added) if params.seed is None else params.seed,
                record=self._record_fraction > 0 and self._record_draws.random() < self._record_fraction,
            )
            detokenizer = None if self.tokenizer is None else self.tokenizer.detokenizer(prompt)
            self._answers[request.request_id] = Answer(sequence, detokenizer)
            self._scheduler.add(sequence)
            self._num_added += 1

    def abort(self, request_ids: Sequence[str]) -> None:
        """Ends requests; their last delta comes from the next `step`. Unknown ids are ignored."""
        for request_id in request_ids:
            answer = self._answers.pop(request_id, None)
            if answer is not None:
                self._scheduler.finish(answer.sequence)
                self._ended.append(answer.abort())

    def abort_all(self) -> None:
        self.abort(list(self._answers))

    def step(self) -> list[Delta]:
        """Runs one step, if there is work; deltas in the order they happened. Raises what the executor raises.

        After an exception nothing is lost: `recover` with a working executor continues every request.
        """
        deltas, self._ended = self._ended, []
        plan = self._scheduler.schedule()
        if plan is None:
            self.check_integrity()
            return deltas
        try:
            result = self.executor.execute(plan)
        except BaseException:
            self._ended = deltas
            raise
        self._steps += 1
        if result.draft is not None:
            self._draft = self._draft.plus(result.draft)
        for span in plan.spans:
            self._prompt_tokens += len(span.token_ids) if span.sample_index == 0 else 0
        for span, substituted in zip(plan.spans, result.substituted, strict=False):  # of no span, or of each
            if span.request_id in self._answers:
                self._answers[span.request_id].note_substituted(substituted)
        for progress in self._scheduler.update(plan, result):
            sequence = progress.sequence
            answer = self._answers[sequence.request_id]
            delta = answer.delta(progress)
            self._generated_tokens += len(delta.token_ids)
            deltas.append(delta)
            if delta.finish_reason is not None:
                self._scheduler.finish(sequence)
                del self._answers[sequence.request_id]
        if not self._answers:
            try:
                self.check_integrity()
            except BaseException:
                self._ended = deltas
                raise
        return deltas

    def recover(self, executor: Executor) -> None:
        """Continue on `executor`, whose caches are empty: running requests prefill again and keep their tokens."""
        self.executor = executor
        self._scheduler.restart()
        if self._applied is not None:
            found = executor.apply_placement(*self._applied)
            if isinstance(found, SmoeError):
                log.warning("experts stay as they were loaded: %s", found)

    def resize_experts(self, memory: str) -> int:
        """Between steps; as EngineClient (smoe.core.client) has it."""
        found = self.executor.resize_experts(memory)
        if isinstance(found, ConfigError):
            raise found
        return found

    def apply_placement(self, placement: Placement, name: str) -> ExpertsMoved:
        """Between steps; as EngineClient (smoe.core.client) has it. `name` is for messages."""
        found = self.executor.apply_placement(placement, name)
        if isinstance(found, SmoeError):
            raise found
        self._applied = placement, name
        if self._affinity_of is not None:
            self._scheduler.use_affinity(self._affinity_of(placement))
        return found

    def stats(self) -> EngineStats:
        found, rss = self.executor.stats(), read_rss()
        return EngineStats(
            waiting=sum(len(arena.waiting) for arena in self._scheduler.arenas),
            running=len(self._scheduler.running),
            prompt_tokens=self._prompt_tokens,
            generated_tokens=self._generated_tokens,
            steps=self._steps,
            kv_rows_used=sum(arena.kv.used_rows for arena in self._scheduler.arenas),
            kv_rows_total=sum(arena.kv.num_rows for arena in self._scheduler.arenas),
            experts=found.experts,
            peak_rss_bytes=rss.peak_bytes,
            rss_bytes=rss.now_bytes,
            draft=self._draft,
            routing=found.routing,
            traffic=found.traffic,
        )

    def check_integrity(self) -> None:
        """Raises RuntimeError when rows, slots or the executor's caches are not accounted for."""
        self._scheduler.check_integrity()
        self.executor.check_integrity()
        sequences = {answer.sequence.request_id for answer in self._answers.values()}
        unfinished = (s for s in (*self._scheduler.running, *self._scheduler.waiting) if not s.finished)
        scheduled = {s.request_id for s in unfinished}
        if sequences != scheduled:
            raise RuntimeError(f"requests answered {sorted(sequences)} but scheduled {sorted(scheduled)}")
