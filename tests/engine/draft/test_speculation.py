"""Windows through the engine, on a decoder whose logits are a function of all rows that it finds."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from smoe.core.request import Request
from smoe.core.stats import ExpertStats
from smoe.core.step import SpanPlan
from smoe.engine.core import EngineCore
from smoe.engine.draft.depth import FixedDepth, Step
from smoe.engine.draft.pace import Pace
from smoe.engine.draft.protocol import Proposal
from smoe.engine.draft.speculation import Speculation
from tests.engine.collect import Outcome, drain, merge, request
from tests.engine.fakes import EOS, LOST_TOKEN, NAN_TOKEN, Script, make_core, make_runner

PROMPTS = [[3], [9] * 40, [4, 5, 6], list(range(2, 23)), [7, 8] * 13]
PARAMS: list[dict[str, object]] = [
    {"max_tokens": 30},
    {"max_tokens": 9},
    {"max_tokens": 17, "stop_token_ids": tuple(range(40, 60))},
    {"max_tokens": 1},
    {"max_tokens": 25, "logprobs": 2},
]


class Guesses:
    """Proposes what the model alone answered, each token wrong with some probability and then lost or not finite as
    often as not."""

    def __init__(self, answers: dict[str, list[int]], wrong: float) -> None:
        self._answers, self._wrong, self._chance = answers, wrong, random.Random(0)
        self.known: dict[str, int] = {}
        self.forgotten: list[str] = []

    def propose(self, spans: Sequence[SpanPlan], known: Sequence[Sequence[int]], limits: Sequence[int]) -> Proposal:
        runs = []
        for span, own, limit in zip(spans, known, limits, strict=True):
            assert len(own) == span.past + 1
            assert own[-1] == span.token_ids[-1]
            self.known[span.request_id] = len(own)
            right = self._answers[span.request_id][span.sample_index :][:limit]
            runs.append(tuple(self._spoilt(token) for token in right))
        return Proposal(tuple(runs), tuple((None,) * len(run) for run in runs))

    def _spoilt(self, token: int) -> int:
        if self._chance.random() >= self._wrong:
            return token
        return self._chance.choice([(token + 1) % 100, NAN_TOKEN, LOST_TOKEN])

    def accepted(self, spans: Sequence[SpanPlan], counts: Sequence[int]) -> None:
        assert all(count <= span.draft_limit for span, count in zip(spans, counts, strict=True))

    def forget(self, request_id: str) -> None:
        self.forgotten.append(request_id)

    def close(self) -> None:
        return


def requests() -> list[Request]:
    return [request(str(i), *each[:1], **each[1]) for i, each in enumerate(zip(PROMPTS, PARAMS, strict=True))]


def plain(script: Script | None = None) -> dict[str, Outcome]:
    core = make_core(512, script)
    core.add(requests())
    return drain(core)


def speculating(
    expected: dict[str, Outcome],
    tokens: int,
    wrong: float,
    script: Script | None = None,
    budget: int = 64,
    pace: Pace | None = None,
    experts: Callable[[], ExpertStats] | None = None,
) -> tuple[EngineCore, Guesses]:
    guesses = Guesses({name: outcome.token_ids for name, outcome in expected.items()}, wrong)
    pace = pace or Pace(lambda: FixedDepth(tokens), auto_off=False)
    speculation = Speculation(guesses, pace, experts=experts)
    runner = make_runner(512, script, speculation=speculation, draft_tokens=tokens)
    return EngineCore(runner, None, max_num_seqs=4, max_num_batched_tokens=budget), guesses


def assert_same(found: dict[str, Outcome], expected: dict[str, Outcome]) -> None:
    for name, outcome in expected.items():
        assert (found[name].token_ids, found[name].logprobs) == (outcome.token_ids, outcome.logprobs)
        assert found[name].last is not None
        assert outcome.last is not None
        assert replace(found[name].last, token_ids=(), logprobs=()) == replace(outcome.last, token_ids=(), logprobs=())


@pytest.mark.parametrize("tokens", [1, 2, 4, 8])
@pytest.mark.parametrize("wrong", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("budget", [5, 64])
def test_answers_are_those_of_the_model_alone(tokens: int, wrong: float, budget: int) -> None:
    expected = plain()
    core, guesses = speculating(expected, tokens, wrong, budget=budget)
    core.add(requests())
    assert_same(drain(core), expected)
    draft = core.stats().draft
    assert draft.windows > 0
    assert (draft.accepted == draft.drafted) == (wrong == 0.0)
    if wrong == 1.0:
        assert draft.accepted == 0
    if budget == 64:
        assert set(guesses.forgotten) >= {"1", "2", "3"}


@pytest.mark.parametrize("at", range(2, 12))
@pytest.mark.parametrize("token", [EOS, NAN_TOKEN, LOST_TOKEN], ids=["eos", "not finite", "lost"])
def test_an_end_within_a_run_is_the_end(at: int, token: int) -> None:
    """After so many tokens each answer meets its end; nothing that was drafted beyond it shows."""

    def script(prefix: list[int]) -> int | None:
        return token if len(prefix) % 16 == at else None

    expected = plain(script)
    core, _ = speculating(expected, 5, 0.2, script)
    core.add(requests())
    assert_same(drain(core), expected)


def test_a_lost_expert_of_a_wrong_guess_ends_nothing() -> None:
    expected = plain()
    core, guesses = speculating(expected, 4, 0.0)
    guesses._spoilt = lambda token: LOST_TOKEN  # type: ignore[method-assign]
    core.add(requests())
    assert_same(drain(core), expected)
    assert core.stats().draft.windows == 0, "a window whose verification failed was no window"


@pytest.mark.parametrize("step", range(1, 12))
def test_aborts_and_lost_devices_between_windows(step: int) -> None:
    expected = plain()
    core, _ = speculating(expected, 4, 0.3)
    core.add(requests())
    deltas = []
    for _ in range(step):
        deltas += core.step()
    core.abort(["4"])
    core.recover(speculating(expected, 4, 0.3)[0].executor)
    while core.has_work:
        deltas += core.step()
    found = merge(deltas)
    assert found["4"].token_ids == expected["4"].token_ids[: len(found["4"].token_ids)]
    del expected["4"], found["4"]
    assert_same(found, expected)


def test_each_step_is_told_what_travelled_in_it_and_what_it_saved() -> None:
    expected = plain()
    counted = iter(range(1, 1000))

    def experts() -> ExpertStats:
        count = next(counted)
        return ExpertStats(transfer_s=3.0 * count, wait_s=float(count), prefetched=5 * count, wasted=2 * count)

    seen: list[Step] = []

    class Noted(Pace):
        def note(self, step: Step) -> float:
            seen.append(step)
            return 0.25

    pace = Noted(lambda: FixedDepth(4), auto_off=False)
    core, _ = speculating(expected, 4, 0.0, pace=pace, experts=experts)
    core.add(requests())
    assert_same(drain(core), expected)
    assert {(s.transfer_s, s.wait_s, s.prefetched, s.wasted) for s in seen} == {(3.0, 1.0, 5, 2)}
    draft = core.stats().draft
    assert draft.saved_s == pytest.approx(0.25 * sum(step.depth > 0 for step in seen))
