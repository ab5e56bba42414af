"""`smoe bench quality`: what lossy policies cost in perplexity and buy in time, in one run."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from smoe.bench.quality import report, speed, texts
from smoe.bench.quality.compare import Outcome, compare
from smoe.bench.quality.contenders import LOSSY, WAIT
from smoe.bench.quality.gates import gate_weights
from smoe.bench.quality.setting import Group, Model
from smoe.bench.result import Result
from smoe.models.loading import open_checkpoint
from smoe.offload.policies.catalog import PRESETS


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """`texts` of `length` tokens a domain, `streams` of `segments` segments of `segment` tokens; `timed` decode steps
    after `warm_up` on the inflated model. Each group has one text more, which warms its cache up."""

    texts: int
    length: int
    streams: int
    segments: int
    segment: int
    warm_up: int
    timed: int


OnProgress = Callable[[int, int], None]
"""Gets the tokens scored and all there are; the timed part comes after them."""
FULL = Sizes(texts=12, length=128, streams=8, segments=8, segment=48, warm_up=24, timed=48)
QUICK = Sizes(texts=5, length=96, streams=3, segments=6, segment=48, warm_up=12, timed=12)
DEFAULT_MEMORY = "25%"


def run(
    encode: Callable[[str], list[int]],
    *,
    quick: bool,
    expert_memory: str = DEFAULT_MEMORY,
    inflated: Callable[[], Path] | None,
    out: Path,
    on_progress: OnProgress = lambda done, total: None,
) -> Result:
    """The result, with a picture beside where it will be written in `out`. `encode` is the packaged model's tokenizer;
    `inflated` gives the folder of the inflated model, None leaves times out. ConfigError for a memory that holds all
    experts, or not one a layer."""
    sizes = QUICK if quick else FULL
    model = Model(open_checkpoint("builtin"), expert_memory)
    name = "quality-quick" if quick else "quality"
    groups = make_groups(texts.heldout_tokens(encode), sizes)
    done, total = 0, (1 + len(LOSSY)) * sum(map(num_tokens, groups))

    def scored(group: Group) -> None:
        nonlocal done
        done += num_tokens(group)
        on_progress(done, total)

    config: dict[str, object] = {"expert_memory": expert_memory, "slots": model.num_slots, "seed": 0, **asdict(sizes)}
    config["policies"] = {contender.name: contender.policy for contender in (WAIT, *LOSSY)}
    result = Result(name=name, config=config)

    # One row of a model this small is no work for a second thread.
    with _threads(1):
        references = []
        for group in groups:
            references.append(model.reference(group))
            scored(group)
        weights = [r.trace.expert_weights for r in references[:-1] if r.trace.expert_weights is not None]
        gates = gate_weights(np.concatenate(weights, axis=1), threshold=1.5 / model.geometry.top_k)
        report.add_gates(gates, result)
        report.add_waiting(references, lambda: model.cache(WAIT.policy), result)
        outcomes: dict[str, list[Outcome]] = {}
        for contender in LOSSY:
            outcomes[contender.name] = []
            for reference in references:
                outcomes[contender.name].append(compare(model, contender.policy, reference))
                scored(reference.group)
            report.add_outcomes(contender, outcomes[contender.name], result)
    for preset in PRESETS:
        report.add_admission(outcomes, preset, f"{preset}, no admission", result)
    report.add_mass_correlation(outcomes, [contender.name for contender in LOSSY if contender.keeps_first], result)

    millis: dict[str, float] = {}
    if inflated is not None:
        timed = [contender for contender in (WAIT, *LOSSY) if contender.timed]
        stream = references[-1].group.texts[0].token_ids[: sizes.warm_up + sizes.timed]
        timings = speed.measure(inflated(), timed, stream, warm_up=sizes.warm_up, expert_memory=expert_memory)
        millis = report.add_timings(timings, WAIT.name, result)
    out.mkdir(parents=True, exist_ok=True)
    report.draw_all(out / f"{name}.png", outcomes, millis, WAIT.name, gates, expert_memory)
    return result


def num_tokens(group: Group) -> int:
    return sum(len(text.token_ids) for text in (group.warm_up, *group.texts))


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def make_groups(tokens: dict[str, list[int]], sizes: Sizes) -> list[Group]:
    """One a domain, then the switching streams."""
    alone = texts.domain_texts(tokens, sizes.texts + 1, sizes.length)
    groups = []
    for domain in tokens:
        own = [text for text in alone if text.domain == domain]
        groups.append(Group(name=domain, warm_up=own[0], texts=own[1:]))
    streams = texts.switching_texts(tokens, sizes.streams + 1, sizes.segments, sizes.segment)
    groups.append(Group(name=texts.SWITCHING, warm_up=streams[0], texts=streams[1:]))
    return groups
