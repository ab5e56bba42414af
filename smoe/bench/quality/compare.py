"""One policy over one group of texts, against the lossless scores of the same texts."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from smoe.bench.quality.bootstrap import Interval, Nats, paired_rise, perplexity
from smoe.bench.quality.ideal import Tally
from smoe.bench.quality.off_policy import estimate
from smoe.bench.quality.setting import Model, Reference
from smoe.bench.quality.texts import Text
from smoe.core.route_trace import Array

AFTER_SWITCH = 16
"""Tokens of a segment that count as right after the switch."""

Pair = tuple[Nats, Nats]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """`pairs` are nats with and without substitution, by text. `estimate` is the tally that the recorded routes of the
    lossless run foretell."""

    group: str
    pairs: Sequence[Pair]
    tally: Tally
    estimate: Tally
    texts: Sequence[Text]

    @property
    def perplexity(self) -> float:
        return perplexity([lossy for lossy, _ in self.pairs])

    def rise(self) -> Interval:
        return paired_rise([self.pairs])

    def rise_after_switches(self, *, right_after: bool) -> Interval:
        """Of the tokens within AFTER_SWITCH of a switch, or of all others."""
        return paired_rise([near_switches(self.texts, self.pairs, right_after=right_after)])


def compare(model: Model, policy: str, reference: Reference) -> Outcome:
    group = reference.group
    cache = model.cache(policy)
    scorer = model.scorer(cache)
    scorer.nats(group.warm_up.token_ids)
    before = cache.tally()
    lossy = [scorer.nats(text.token_ids) for text in group.texts]
    return Outcome(
        group=group.name,
        pairs=list(zip(lossy, reference.nats, strict=True)),
        tally=cache.tally().since(before),
        estimate=total(estimate(reference.trace, model.cache(policy))[1:]),
        texts=group.texts,
    )


def near_switches(texts: Sequence[Text], pairs: Sequence[Pair], *, right_after: bool) -> list[Pair]:
    """Of each pair the tokens within AFTER_SWITCH of a switch, or all others."""
    masks = [_right_after(text) == right_after for text in texts]
    return [(first[mask], second[mask]) for (first, second), mask in zip(pairs, masks, strict=True)]


def total(tallies: Sequence[Tally]) -> Tally:
    found = Tally()
    for tally in tallies:
        found = found.plus(tally)
    return found


def _right_after(text: Text) -> Array:
    """[len - 1] bool, by scored token."""
    positions = np.arange(1, len(text.token_ids))
    switches = np.array(text.switches)
    near: Array = (positions[:, None] >= switches) & (positions[:, None] < switches + AFTER_SWITCH)
    return np.asarray(near.any(axis=1))
