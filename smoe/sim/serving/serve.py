"""Serving in virtual time: the engine's own scheduler, arrivals from outside, and a cost for each step.

Simultaneous events have an order: a step that ends, its answers, arrivals by time and then in the order given, the
next step. So a request that arrives when a step ends is in the one that begins then, as it is in the engine, which
empties its inbox between steps.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from smoe.core.errors import ConfigError
from smoe.core.sampling import SamplingParams
from smoe.core.step import SampledToken, SpanPlan, StepPlan, StepResult
from smoe.metrics.serving import RequestRecord
from smoe.sched.scheduler import Progress, Scheduler
from smoe.sched.sequence import Sequence as Sequence_
from smoe.sim.serving.cost import StepCost

_TOKEN = SampledToken(0)
_PARAMS = SamplingParams(ignore_eos=True)
_NOTHING: tuple[SampledToken, ...] = ()
_ONE = (_TOKEN,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A request that reaches the engine at `at_s`, of so many tokens, and is answered with so many."""

    request_id: str
    at_s: float
    prompt_tokens: int
    output_tokens: int

    def __post_init__(self) -> None:
        for name in ("prompt_tokens", "output_tokens"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{self.request_id}: {name}", getattr(self, name), "integer >= 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """`records` in the order of arrival. `busy_s` is the time of all steps; `ended_s` when the last of them ended."""

    records: tuple[RequestRecord, ...]
    steps: int
    busy_s: float
    ended_s: float
    most_waiting: int


@dataclass(slots=True)
class _Answer:
    arrival: Arrival
    chunk_s: list[float] = field(default_factory=list)
    chunk_tokens: list[int] = field(default_factory=list)

    def record(self) -> RequestRecord:
        arrival = self.arrival
        return RequestRecord(
            request_id=arrival.request_id,
            scheduled_s=arrival.at_s,
            sent_s=arrival.at_s,
            prompt_tokens=arrival.prompt_tokens,
            output_tokens=sum(self.chunk_tokens),
            chunk_s=tuple(self.chunk_s),
            chunk_tokens=tuple(self.chunk_tokens),
        )


def serve(
    arrivals: Iterable[Arrival], scheduler: Scheduler, cost: StepCost, *, accept: float = 1.0, seed: int = 0
) -> Served:
    """Until every request has its answer. `scheduler` is an idle one of the engine's kind; where it lets tokens be
    drafted, each is kept with chance `accept` while all before it are.

    Raises ConfigError for a request that the scheduler's memory can never hold.
    """
    coming = sorted(arrivals, key=attrgetter("at_s"))
    check(coming, scheduler)
    answers = {each.request_id: _Answer(each) for each in coming}
    if len(answers) != len(coming):
        raise ConfigError("arrivals", f"{len(coming)} of {len(answers)} names", "a name of its own for each")
    draw = random.Random(seed)
    now = busy = 0.0
    next_up = steps = most_waiting = 0
    while True:
        while next_up < len(coming) and coming[next_up].at_s <= now:
            scheduler.add(_sequence(coming[next_up]))
            next_up += 1
        plan = scheduler.schedule()
        if plan is None:
            if next_up == len(coming):
                break
            now = coming[next_up].at_s
            continue
        took = cost.seconds(plan, now)
        assert took > 0, f"a step of {len(plan.spans)} spans took {took} s"
        now, busy, steps = now + took, busy + took, steps + 1
        waiting = sum(len(arena.waiting) for arena in scheduler.arenas)
        most_waiting = max(most_waiting, waiting)
        for progress in scheduler.update(plan, _answer(plan, accept, draw)):
            _note(answers[progress.sequence.request_id], progress, now)
    scheduler.check_integrity()
    return Served(
        records=tuple(answer.record() for answer in answers.values()),
        steps=steps,
        busy_s=busy,
        ended_s=now,
        most_waiting=most_waiting,
    )


def check(arrivals: Sequence[Arrival], scheduler: Scheduler) -> None:
    """Raises ConfigError naming the first request that never fits."""
    rows = scheduler.arenas[0].kv.num_rows
    for each in arrivals:
        if each.prompt_tokens + each.output_tokens > rows:
            asked = f"{each.prompt_tokens} + {each.output_tokens} tokens"
            raise ConfigError(f"request {each.request_id}", asked, f"at most the {rows} rows of the KV memory")


def _note(answer: _Answer, progress: Progress, now: float) -> None:
    answer.chunk_s.append(now)
    answer.chunk_tokens.append(len(progress.tokens))


def _sequence(arrival: Arrival) -> Sequence_:
    return Sequence_(
        request_id=arrival.request_id,
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
