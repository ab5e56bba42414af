"""EngineCore over the fake decoder, whose tokens are functions of the whole prefix."""

import random

import pytest

from smoe.core.errors import RequestError
from smoe.core.request import Request
from smoe.core.step import StepPlan, StepResult
from smoe.engine.core import EngineCore
from smoe.engine.tokenizer import Tokenizer, load_tokenizer
from smoe.models.loading import model_folder
from tests.engine.collect import drain, merge, request, run_alone
from tests.engine.fakes import CONTEXT, EOS, LOST_TOKEN, NAN_TOKEN, VOCAB, Script, make_core, make_runner

PROMPTS = [[3], [9] * 40, [4, 5, 6], list(range(2, 23)), [7, 8] * 13]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    found = load_tokenizer(model_folder("builtin"))
    assert found is not None
    return found


def say(prompt: int, token_ids: list[int]) -> Script:
    """Answers a prompt of `prompt` tokens with these, then with token 2 for ever."""

    def script(prefix: list[int]) -> int:
        done = len(prefix) - prompt
        return token_ids[done] if done < len(token_ids) else 2

    return script


@pytest.mark.parametrize("budget", [1, 7, 64])
def test_a_batch_of_unequal_prompts_gives_each_what_it_gets_alone(budget: int) -> None:
    core = make_core(max_num_batched_tokens=budget)
    core.add([request(str(i), prompt, max_tokens=6 + i) for i, prompt in enumerate(PROMPTS)])
    outcomes = drain(core)
    for i, prompt in enumerate(PROMPTS):
        alone = run_alone(make_core(), prompt, max_tokens=6 + i)
        assert outcomes[str(i)].token_ids == alone.token_ids
        assert outcomes[str(i)].reason == "length"


def test_a_seed_gives_the_same_tokens_in_any_company() -> None:
    params = {"temperature": 1.2, "top_p": 0.95, "seed": 42, "max_tokens": 12}
    alone = run_alone(make_core(), [3, 4], **params).token_ids
    core = make_core(max_num_batched_tokens=9, seed=5)
    core.add([request(f"other {i}", prompt, temperature=1.0, max_tokens=9) for i, prompt in enumerate(PROMPTS)])
    core.step()
    core.add([request("it", [3, 4], **params)])
    assert drain(core)["it"].token_ids == alone
    assert run_alone(make_core(), [3, 4], **(params | {"seed": 43})).token_ids != alone


def test_requests_without_seed_differ_and_repeat_with_the_seed_of_the_engine() -> None:
    def tokens(seed: int) -> list[list[int]]:
        core = make_core(seed=seed)
        core.add([request(str(i), [3, 4], temperature=1.5, max_tokens=10) for i in range(3)])
        outcomes = drain(core)
        return [outcomes[str(i)].token_ids for i in range(3)]

    first = tokens(1)
    assert len({tuple(t) for t in first}) == 3
    assert tokens(1) == first
    assert tokens(2) != first


def test_max_tokens_defaults_to_the_rest_of_the_context_and_is_bounded_by_it() -> None:
    for params in ({}, {"max_tokens": 10_000}):
        outcome = run_alone(make_core(), [3] * 90, **params)
        assert (outcome.reason, len(outcome.token_ids)) == ("length", CONTEXT - 90)
        assert outcome.last is not None
        assert outcome.last.usage is not None
        assert outcome.last.usage.total_tokens == CONTEXT


def test_max_tokens_defaults_to_what_fits_the_arena_when_that_is_smaller() -> None:
    assert len(run_alone(make_core(rows=40), [3] * 10).token_ids) == 30


def test_eos_is_counted_not_shown_and_can_be_ignored(tokenizer: Tokenizer) -> None:
    script = say(2, [50, EOS, 51])
    outcome = run_alone(make_core(script=script, tokenizer=tokenizer), [3, 4])
    assert (outcome.reason, outcome.token_ids) == ("stop", [50, EOS])
    assert outcome.text == tokenizer.decode([50])
    assert outcome.last is not None
    assert outcome.last.stop_reason is None
    assert outcome.last.usage is not None
    assert outcome.last.usage.completion_tokens == 2
    ignored = run_alone(make_core(script=script, tokenizer=tokenizer), [3, 4], ignore_eos=True, max_tokens=3)
    assert (ignored.reason, ignored.token_ids) == ("length", [50, EOS, 51])


def test_stop_token(tokenizer: Tokenizer) -> None:
    outcome = run_alone(make_core(script=say(1, [50, 51]), tokenizer=tokenizer), [3], stop_token_ids=(51,))
    assert outcome.last is not None
    assert (outcome.reason, outcome.last.stop_reason, outcome.token_ids) == ("stop", 51, [50, 51])
    assert outcome.text == tokenizer.decode([50])


def letters(tokenizer: Tokenizer, text: str) -> list[int]:
    """One token a byte, which keeps them below the fake's vocabulary where the bytes are ASCII."""
    ids = [i for char in text for i in tokenizer.encode(char)]
    assert tokenizer.decode(ids) == text
    return ids


@pytest.mark.parametrize("stop", ["<", "<e", "b<", "<end>", "ab<end>", ">", "d>"])
def test_stop_strings_split_over_tokens(tokenizer: Tokenizer, stop: str) -> None:
    text = "ab<end>"
    ids = letters(tokenizer, text)
    outcome = run_alone(make_core(script=say(1, ids), tokenizer=tokenizer), [3], stop=(stop, "never"), max_tokens=20)
    end = text.index(stop)
    assert outcome.text == text[:end]
    assert outcome.token_ids == ids[: end + len(stop)]
    assert outcome.last is not None
    assert (outcome.reason, outcome.last.stop_reason) == ("stop", stop)
    assert all(text[:end].startswith("".join(outcome.pieces[:n])) for n in range(len(outcome.pieces)))


def test_a_stop_string_that_stays_incomplete_is_shown_at_the_end(tokenizer: Tokenizer) -> None:
    ids = letters(tokenizer, "ab<en")
    outcome = run_alone(make_core(script=say(1, ids), tokenizer=tokenizer), [3], stop=("<end>",), max_tokens=len(ids))
    assert (outcome.reason, outcome.text) == ("length", "ab<en")
    assert outcome.pieces == ["a", "b", "", "", "<en"]


def test_logprobs_come_with_their_tokens() -> None:
    outcome = run_alone(make_core(), [3, 4], max_tokens=5, logprobs=2, temperature=1.0)
    assert [entry.token_id for entry in outcome.logprobs] == outcome.token_ids
    assert all(len(entry.top) == 2 and entry.logprob <= 0 for entry in outcome.logprobs)


def test_a_numeric_error_ends_one_request_and_leaves_the_others_as_they_were() -> None:
    core = make_core()
    core.add([request("bad", [3, NAN_TOKEN]), *(request(str(i), p, max_tokens=8) for i, p in enumerate(PROMPTS))])
    outcomes = drain(core)
    bad = outcomes.pop("bad")
    assert bad.last is not None
    assert (bad.reason, bad.token_ids) == ("numeric_error", [])
    assert "not finite" in (bad.last.error or "")
    for i, prompt in enumerate(PROMPTS):
        assert outcomes[str(i)].token_ids == run_alone(make_core(), prompt, max_tokens=8).token_ids


def test_lost_experts_end_the_requests_that_need_them() -> None:
    core = make_core()
    core.add([request("lost", [3, LOST_TOKEN]), *(request(str(i), p, max_tokens=8) for i, p in enumerate(PROMPTS))])
    outcomes = drain(core)
    lost = outcomes.pop("lost")
    assert lost.last is not None
    assert (lost.reason, lost.last.error) == ("error", f"store: expert of token {LOST_TOKEN} is lost")
    for i, prompt in enumerate(PROMPTS):
        assert outcomes[str(i)].token_ids == run_alone(make_core(), prompt, max_tokens=8).token_ids


def test_abort_waiting_and_running_requests() -> None:
    core = make_core(max_num_seqs=1)
    core.add([request("running", [3]), request("waiting", [4]), request("rest", [5], max_tokens=3)])
    first = core.step()
    core.abort(["waiting", "running", "unknown"])
    core.abort(["running"])
    deltas = core.step()
    assert [(d.request_id, d.finish_reason) for d in deltas[:2]] == [("waiting", "abort"), ("running", "abort")]
    assert deltas[1].usage is not None
    assert deltas[1].usage.completion_tokens == 1
    assert first[0].request_id == "running"
    while core.has_work:
        deltas += core.step()
    assert merge(deltas)["rest"].token_ids == run_alone(make_core(), [5], max_tokens=3).token_ids
    assert core.stats().kv_rows_used == 0


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (request("x", []), r"prompt_token_ids: \(\) \(at least one token\)"),
        (request("x", [3, VOCAB]), rf"prompt_token_ids: {VOCAB} \(integer, 0 to {VOCAB - 1}, at position 1\)"),
        (request("x", [-1]), r"prompt_token_ids: -1 "),
        (request("x", ["a"]), r"prompt_token_ids: 'a' "),  # type: ignore[list-item]
        (request("x", [3] * CONTEXT), rf"prompt length: {CONTEXT} \(below the context length of {CONTEXT} tokens"),
        (request("x", [3] * 500), rf"prompt length: 500 \(below the context length of {CONTEXT} tokens"),
        (request("x", [3], stop=("a",)), r"stop: \('a',\) \(needs a tokenizer"),
        (request("ok", [3]), r"request_id: 'ok' \(unique among requests in flight\)"),
        (request("flying", [3]), r"request_id: 'flying' \(unique among requests in flight\)"),
    ],
)
def test_impossible_requests_are_refused_with_all_that_came_with_them(bad: Request, message: str) -> None:
    core = make_core()
    core.add([request("flying", [3], max_tokens=2)])
    with pytest.raises(RequestError, match=message):
        core.add([request("ok", [3], max_tokens=1), bad])
    assert set(drain(core)) == {"flying"}


def test_requests_that_never_fit_the_arena_are_refused() -> None:
    core = make_core(rows=20)
    with pytest.raises(RequestError, match=r"prompt length \+ max_tokens: 25 \(at most the 20 rows"):
        core.add([request("x", [3] * 10, max_tokens=15)])
    with pytest.raises(RequestError, match="at most the 20 rows"):
        core.add([request("x", [3] * 20)])


def test_many_requests_through_a_small_arena() -> None:
    rng = random.Random(0)
    core = make_core(rows=CONTEXT, max_num_seqs=3, max_num_batched_tokens=11)
    prompts = {str(i): [rng.randrange(2, 50) for _ in range(rng.randrange(1, 40))] for i in range(30)}
    core.add([request(name, prompt, max_tokens=5) for name, prompt in prompts.items()])
    outcomes = drain(core)
    for name, prompt in prompts.items():
        assert outcomes[name].token_ids == run_alone(make_core(), prompt, max_tokens=5).token_ids


class FailsAt:
    """An executor whose devices are lost in one step, after the forward has run."""

    def __init__(self, step: int) -> None:
        self._runner = make_runner()
        self._left = step

    def execute(self, plan: StepPlan) -> StepResult:
        result = self._runner.execute(plan)
        self._left -= 1
        if self._left == 0:
            raise ConnectionError("device lost")
        return result

    def __getattr__(self, name: str) -> object:
        return getattr(self._runner, name)


@pytest.mark.parametrize("step", range(1, 9))
def test_requests_survive_the_loss_of_the_devices_in_any_step(step: int) -> None:
    params = {"temperature": 0.9, "seed": 3, "max_tokens": 5}
    core = EngineCore(FailsAt(step), None, max_num_seqs=2, max_num_batched_tokens=12)  # type: ignore[arg-type]
    prompts = [[3] * 20, [4, 5], [6] * 3]
    core.add([request(str(i), prompt, **params) for i, prompt in enumerate(prompts)])
    deltas, recovered = [], False
    while core.has_work:
        try:
            deltas += core.step()
        except ConnectionError:
            core.recover(make_runner())
            recovered = True
    assert recovered
    outcomes = merge(deltas)
    for i, prompt in enumerate(prompts):
        assert outcomes[str(i)].token_ids == run_alone(make_core(), prompt, **params).token_ids


def test_an_abort_is_told_even_when_the_next_step_fails() -> None:
    core = EngineCore(FailsAt(2), None, max_num_seqs=2, max_num_batched_tokens=12)  # type: ignore[arg-type]
    core.add([request("a", [3]), request("b", [4], max_tokens=3)])
    deltas = core.step()
    core.abort(["a"])
    with pytest.raises(ConnectionError):
        core.step()
    core.recover(make_runner())
    while core.has_work:
        deltas += core.step()
    assert {name: outcome.reason for name, outcome in merge(deltas).items()} == {"a": "abort", "b": "length"}


def test_stats_count_tokens_once() -> None:
    core = make_core(max_num_batched_tokens=8)
    core.add([request("a", [3] * 20, max_tokens=4), request("b", [4], max_tokens=2)])
    assert core.stats().waiting == 2
    drain(core)
    stats = core.stats()
    assert (stats.prompt_tokens, stats.generated_tokens, stats.waiting, stats.running) == (21, 6, 0, 0)
    assert stats.experts.hits == 3
    assert stats.peak_rss_bytes > 10_000_000
