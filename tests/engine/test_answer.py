"""Deltas of several tokens: text and ids cover the same tokens, wherever a run of them is cut."""

import pytest

from smoe.core.request import TokenLogprob
from smoe.core.sampling import SamplingParams
from smoe.core.step import SampledToken
from smoe.engine.answer import Answer
from smoe.engine.detokenize import ByteDetokenizer
from smoe.sched.scheduler import Progress
from smoe.sched.sequence import Sequence


def make(*stop: str, logprobs: int | None = None) -> Answer:
    sequence = Sequence(
        request_id="a",
        token_ids=[65],
        num_prompt=1,
        max_tokens=50,
        params=SamplingParams(stop=stop, logprobs=logprobs),
    )
    return Answer(sequence, ByteDetokenizer(lambda token: bytes([token])))


def run(answer: Answer, text: bytes, reason: str | None = None) -> Progress:
    answer.sequence.token_ids += text  # as the scheduler does
    tokens = tuple(SampledToken(byte, TokenLogprob(byte, -1.0)) for byte in text)
    return Progress(answer.sequence, tokens, reason)  # type: ignore[arg-type]


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_stop_string_within_a_run_ends_the_answer_at_its_last_token(cut: int) -> None:
    text, answer = b"one two three four", make("o th")
    deltas = [answer.delta(run(answer, text[:cut]))]
    if deltas[-1].finish_reason is None:
        deltas.append(answer.delta(run(answer, text[cut:])))
    last = deltas[-1]
    assert "".join(delta.text for delta in deltas) == "one tw"
    assert b"".join(bytes(delta.token_ids) for delta in deltas) == b"one two th"
    assert (last.finish_reason, last.stop_reason) == ("stop", "o th")
    assert last.usage is not None
    assert last.usage.completion_tokens == len("one two th")
    assert [entry.token_id for delta in deltas for entry in delta.logprobs] == list(b"one two th")


def test_a_stop_string_comes_before_an_end_later_in_the_run() -> None:
    answer = make("b")
    delta = answer.delta(run(answer, b"abcd", reason="length"))
    assert (delta.text, delta.token_ids, delta.finish_reason, delta.stop_reason) == ("a", (97, 98), "stop", "b")


def test_the_token_that_ends_a_run_is_not_in_the_text() -> None:
    answer = make("zz")
    delta = answer.delta(run(answer, b"abz", reason="stop"))
    assert (delta.text, delta.token_ids, delta.finish_reason, delta.stop_reason) == ("ab", (97, 98, 122), "stop", None)


def test_a_character_over_two_runs_appears_once_it_is_whole() -> None:
    answer, text = make(), "né".encode()
    assert [answer.delta(run(answer, text[:2])).text, answer.delta(run(answer, text[2:])).text] == ["n", "é"]


def test_an_error_after_tokens_keeps_them() -> None:
    answer = make()
    answer.sequence.token_ids += b"ab"
    tokens = (SampledToken(97), SampledToken(98), SampledToken(None, error="numeric: bad"))
    delta = answer.delta(Progress(answer.sequence, tokens, "numeric_error"))
    assert (delta.text, delta.token_ids, delta.finish_reason, delta.error) == (
        "ab",
        (97, 98),
        "numeric_error",
        "numeric: bad",
    )
    assert delta.usage is not None
    assert delta.usage.completion_tokens == 2
