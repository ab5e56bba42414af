"""Serving in virtual time: the engine's own scheduler, arrivals from outside, and a cost for each step.

Simultaneous events have an order: a step that ends, its answers, arrivals by time and then in the order given, the
next step. So a request that arrives when a step ends is in the one that begins then, as it is in the engine, which
empties its inbox between steps.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from smoe.core.errors import ConfigError
from smoe.core.sampling import SamplingParams
from smoe.core.step import SampledToken, SpanPlan, StepPlan, StepResult
from smoe.metrics.serving import RequestRecord
from smoe.sched.scheduler import Scheduler
from smoe.sched.sequence import Sequence as Sequence_
from smoe.sim.serving.cost import StepCost
from smoe.workload.request_trace import Arrival

_TOKEN = SampledToken(0)
_PARAMS = SamplingParams(ignore_eos=True)
_NOTHING: tuple[SampledToken, ...] = ()
_ONE = (_TOKEN,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """`records` of the arrivals in their order, named by their numbers. `busy_s` is the time of all steps; `ended_s`
    when the last of them ended; `most_waiting` the longest queue."""

    records: tuple[RequestRecord, ...]
    steps: int
    busy_s: float
    ended_s: float
    most_waiting: int

    @property
    def duration_s(self) -> float:
        """As a client counts it, from when the first request was due."""
        return self.ended_s - min(record.scheduled_s for record in self.records)


@dataclass(slots=True)
class _Answer:
    arrival: Arrival
    sequence: Sequence_
    chunk_s: list[float] = field(default_factory=list)
    chunk_tokens: list[int] = field(default_factory=list)

    def record(self) -> RequestRecord:
        arrival = self.arrival
        return RequestRecord(
            request_id=self.sequence.request_id,
            scheduled_s=arrival.at_s,
            sent_s=arrival.at_s,
            prompt_tokens=arrival.prompt_tokens,
            output_tokens=sum(self.chunk_tokens),
            chunk_s=tuple(self.chunk_s),
            chunk_tokens=tuple(self.chunk_tokens),
        )


def serve(
    arrivals: Sequence[Arrival], scheduler: Scheduler, cost: StepCost, *, accept: float = 1.0, seed: int = 0
) -> Served:
    """Until every request has its answer. `scheduler` is an idle one of the engine's kind; where it lets tokens be
    drafted, each is kept with chance `accept` while all before it are.

    Raises ConfigError for a request that the scheduler's memory can never hold.
    """
    check(arrivals, scheduler)
    answers = [_Answer(arrival, _sequence(number, arrival)) for number, arrival in enumerate(arrivals)]
    by_name = {answer.sequence.request_id: answer for answer in answers}
    coming = sorted(answers, key=lambda answer: answer.arrival.at_s)
    draw = random.Random(seed)
    now = busy = 0.0
    next_up = steps = most_waiting = 0
    while True:
        while next_up < len(coming) and coming[next_up].arrival.at_s <= now:
            scheduler.add(coming[next_up].sequence)
            next_up += 1
        plan = scheduler.schedule()
        if plan is None:
            if next_up == len(coming):
                break
            now = coming[next_up].arrival.at_s
            continue
        took = cost.seconds(plan, now)
        assert took > 0, f"a step of {len(plan.spans)} spans took {took} s"
        now, busy, steps = now + took, busy + took, steps + 1
        most_waiting = max(most_waiting, sum([len(arena.waiting) for arena in scheduler.arenas]))
        for progress in scheduler.update(plan, _answer(plan, accept, draw)):
            answer = by_name[progress.sequence.request_id]
            answer.chunk_s.append(now)
            answer.chunk_tokens.append(len(progress.tokens))
    scheduler.check_integrity()
    return Served(
        records=tuple([answer.record() for answer in answers]),
        steps=steps,
        busy_s=busy,
        ended_s=now,
        most_waiting=most_waiting,
    )


def check(arrivals: Sequence[Arrival], scheduler: Scheduler) -> None:
    """Raises ConfigError naming the first request that never fits, or asks for nothing."""
    rows = scheduler.arenas[0].kv.num_rows
    for number, each in enumerate(arrivals):
        asked = f"{each.prompt_tokens} + {each.output_tokens} tokens"
        if min(each.prompt_tokens, each.output_tokens) < 1:
            raise ConfigError(f"request {number}", asked, "one of each at least")
        if each.prompt_tokens + each.output_tokens > rows:
            raise ConfigError(f"request {number}", asked, f"at most the {rows} rows of the KV memory")


def _sequence(number: int, arrival: Arrival) -> Sequence_:
    return Sequence_(
        request_id=str(number),
        token_ids=[0] * arrival.prompt_tokens,
        num_prompt=arrival.prompt_tokens,
        max_tokens=arrival.output_tokens,
        params=_PARAMS,
    )


def _answer(plan: StepPlan, accept: float, draw: random.Random) -> StepResult:
    return StepResult(
        tokens=tuple([_NOTHING if span.sample is None else _tokens(span, accept, draw) for span in plan.spans])
    )


def _tokens(span: SpanPlan, accept: float, draw: random.Random) -> tuple[SampledToken, ...]:
    if not span.draft_limit:
        return _ONE
    kept = 0
    while kept < span.draft_limit and draw.random() < accept:
        kept += 1
    return (_TOKEN,) * (1 + kept)
