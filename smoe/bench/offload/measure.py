"""Turns of contenders at one capacity: seconds apart, on the same prompts, each turn with its own bound."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from smoe.bench.offload.bound import Bound, Round
from smoe.bench.offload.sample import Sample
from smoe.bench.offload.worker import Message


class Contender(Protocol):
    def ask(self, message: Message) -> Message: ...


@dataclass(slots=True)
class Capacity:
    """All that was measured at one capacity. `cold[name]` are first requests, from an empty cache."""

    percent: float
    budget_bytes: dict[str, int] = field(default_factory=dict)
    cold: dict[str, list[Sample]] = field(default_factory=dict)
    rounds: list[Round] = field(default_factory=list)
    answers_equal: dict[str, bool] = field(default_factory=dict)
    peak_rss_bytes: dict[str, int] = field(default_factory=dict)


def decode(contender: Contender, prompt: Sequence[int], tokens: int) -> Sample:
    return Sample.from_json(contender.ask({"op": "decode", "prompt": list(prompt), "tokens": tokens}))


def measure(
    percent: float,
    contenders: Mapping[str, Contender],
    resident: Contender,
    link_rate: Callable[[], float],
    prompts: Sequence[Sequence[int]],
    *,
    tokens: int,
    cold_repeats: int,
    repeats: int,
) -> Capacity:
    """`link_rate` measures bytes/s of the link now. Contenders change places every turn; one decoding warms them up."""
    found = Capacity(percent)
    for number in range(cold_repeats):
        for name, contender in in_turn(contenders, number):
            found.budget_bytes[name] = int(contender.ask({"op": "open"})["budget_bytes"])
            found.cold.setdefault(name, []).append(decode(contender, prompts[number % len(prompts)], tokens))
    for number in range(repeats):
        prompt = prompts[number % len(prompts)]
        expected = decode(resident, prompt, tokens)
        rate = link_rate()
        samples = {name: decode(contender, prompt, tokens) for name, contender in in_turn(contenders, number)}
        found.rounds.append(Round(bound=Bound(expected.median_step_s, rate), samples=samples))
        for name, sample in samples.items():
            equal = sample.token_ids == expected.token_ids
            found.answers_equal[name] = found.answers_equal.get(name, True) and equal
            found.peak_rss_bytes[name] = max(found.peak_rss_bytes.get(name, 0), sample.peak_rss_bytes)
    return found


def in_turn(contenders: Mapping[str, Contender], number: int) -> list[tuple[str, Contender]]:
    """All of them, in their order on even turns and backwards on odd ones."""
    listed = list(contenders.items())
    return listed if number % 2 == 0 else listed[::-1]
