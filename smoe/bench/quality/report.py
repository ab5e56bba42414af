"""From outcomes to the figures and samples of a result."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean

import numpy as np

from smoe.bench.quality import plot, speed
from smoe.bench.quality.bootstrap import Interval, paired_rise, perplexity
from smoe.bench.quality.compare import Outcome, near_switches, total
from smoe.bench.quality.contenders import Contender
from smoe.bench.quality.gates import GateWeights
from smoe.bench.quality.ideal import IdealCache, Tally
from smoe.bench.quality.off_policy import estimate
from smoe.bench.quality.setting import Reference
from smoe.bench.quality.speed import Timing
from smoe.bench.quality.texts import SWITCHING
from smoe.bench.result import Figure, Result


def add_gates(gates: GateWeights, result: Result) -> None:
    result.samples["gate_weights"] = asdict(gates)
    reached = ", ".join(f"{share:.0%}" for share in gates.reached_by_rank)
    name = f"choices with at least {gates.threshold:.3g} of their token's gate weight"
    result.add(Figure(figure=name, value=100 * gates.reached, unit="%", bound=f"by rank {reached}"))


def add_waiting(references: Sequence[Reference], cache: Callable[[], IdealCache], result: Result) -> None:
    """Lossless perplexity, and what waiting for every miss fetches: recorded routes are exact for it."""
    groups = {}
    for reference in references:
        tally = total(estimate(reference.trace, cache())[1:])
        exact = perplexity(reference.nats)
        groups[reference.group.name] = {"perplexity": exact, **_per_token(tally)}
        bound = f"{tally.waited / tally.forwards:.3g} experts waited for a token"
        result.add(Figure(figure=f"{reference.group.name}: lossless perplexity", value=exact, unit="", bound=bound))
    result.samples["lossless"] = groups


def add_outcomes(contender: Contender, outcomes: Sequence[Outcome], result: Result) -> None:
    samples: dict[str, object] = {}
    for outcome in outcomes:
        samples[outcome.group] = _outcome(outcome)
    domains = [outcome for outcome in outcomes if outcome.group != SWITCHING]
    rise, tally = overall(domains), total([outcome.tally for outcome in domains])
    samples["domains together"] = {"rise": asdict(rise), "share": tally.share, "mean_mass": tally.mean_mass}
    result.samples[contender.name] = samples
    result.add(_figure(f"{contender.name}: rise in perplexity, domains", rise, tally))
    switching = outcomes[-1]
    result.add(_figure(f"{contender.name}: rise in perplexity, switching", switching.rise(), switching.tally))


def add_admission(outcomes: Mapping[str, Sequence[Outcome]], preset: str, without: str, result: Result) -> None:
    """What background admission changes, the same policy without it being the base: paired by text."""
    groups = [
        [(ours, theirs) for (ours, _), (theirs, _) in zip(mine.pairs, base.pairs, strict=True)]
        for mine, base in zip(outcomes[preset], outcomes[without], strict=True)
    ]
    streams = outcomes[preset][-1].texts
    changes = {
        "domains": paired_rise(groups[:-1]),
        "switching": paired_rise(groups[-1:]),
        "right after switches": paired_rise([near_switches(streams, groups[-1], right_after=True)]),
    }
    for where, change in changes.items():
        name = f"{preset}: perplexity with background admission against none, {where}"
        result.add(Figure(figure=name, value=100 * change.value, unit="%", bound=_bounds(change)))
    result.samples[f"{preset}: admission"] = {where: asdict(change) for where, change in changes.items()}


def add_mass_correlation(outcomes: Mapping[str, Sequence[Outcome]], keeps_first: Sequence[str], result: Result) -> None:
    """Whether more substituted mass goes with a larger rise on the same texts, among policies that keep the heaviest
    expert: Pearson over policies, within each group of texts, then the mean over groups."""
    kept = [outcomes[name] for name in keeps_first]
    correlations = {}
    for by_policy in zip(*kept, strict=True):
        masses = [outcome.tally.mean_mass for outcome in by_policy]
        rises = [np.log1p(outcome.rise().value) for outcome in by_policy]
        correlations[by_policy[0].group] = float(np.corrcoef(masses, rises)[0, 1])
    result.samples["mass_correlation"] = correlations
    bound = ", ".join(f"{group} {value:.2f}" for group, value in correlations.items())
    name = f"correlation of mass and log rise over {len(kept)} policies that keep the first choice"
    result.add(Figure(figure=name, value=float(np.mean(list(correlations.values()))), unit="", bound=bound))


def add_timings(timings: Mapping[str, Timing], baseline: str, result: Result) -> dict[str, float]:
    """Milliseconds a decode step, by policy."""
    result.samples["inflated"] = {name: speed.describe(timing) for name, timing in timings.items()}
    millis = {name: 1000 * timing.mean_s for name, timing in timings.items()}
    for name, value in millis.items():
        blocks = [1000 * mean(block) for block in timings[name].blocks]
        bound = f"blocks {min(blocks):.0f} to {max(blocks):.0f}; {millis[baseline] / value:.2f} x {baseline}"
        result.add(Figure(figure=f"{name}: decode step, inflated bf16", value=value, unit="ms", bound=bound))
    return millis


def draw_all(
    path: Path,
    outcomes: Mapping[str, Sequence[Outcome]],
    millis: Mapping[str, float],
    lossless: str,
    gates: GateWeights,
    expert_memory: str,
) -> None:
    rises = {lossless: (0.0, Interval(0.0, 0.0, 0.0))}
    for name, found in outcomes.items():
        domains = [outcome for outcome in found if outcome.group != SWITCHING]
        rises[name] = (total([outcome.tally for outcome in domains]).mean_mass, overall(domains))
    caption = f"Built-in model, {expert_memory} of the experts in memory, one token a step, 95 % bootstrap intervals"
    plot.draw(path, rises=rises, millis=millis, gates=gates, caption=caption)


def overall(outcomes: Sequence[Outcome]) -> Interval:
    """Of all texts of the outcomes, drawn again within each."""
    return paired_rise([outcome.pairs for outcome in outcomes])


def _outcome(outcome: Outcome) -> dict[str, object]:
    tally, foretold = outcome.tally, outcome.estimate
    found: dict[str, object] = {
        "perplexity": outcome.perplexity,
        "rise": asdict(outcome.rise()),
        "share": tally.share,
        "mean_mass": tally.mean_mass,
        **_per_token(tally),
        "off_policy": {"share": foretold.share, "mean_mass": foretold.mean_mass},
        "off_policy_gap": {
            "share": foretold.share - tally.share,
            "mean_mass": foretold.mean_mass - tally.mean_mass,
        },
        "nats": [[float(lossy.sum()), float(exact.sum()), len(exact)] for lossy, exact in outcome.pairs],
    }
    if outcome.group == SWITCHING:
        found["rise_right_after_switch"] = asdict(outcome.rise_after_switches(right_after=True))
        found["rise_later"] = asdict(outcome.rise_after_switches(right_after=False))
    return found


def _figure(name: str, rise: Interval, tally: Tally) -> Figure:
    bound = f"{_bounds(rise)}; {tally.share:.1%} substituted, m {tally.mean_mass:.3f}"
    return Figure(figure=name, value=100 * rise.value, unit="%", bound=bound)


def _bounds(interval: Interval) -> str:
    return f"{100 * interval.low:.2f} to {100 * interval.high:.2f} %"


def _per_token(tally: Tally) -> dict[str, float]:
    counts = {"substituted": tally.substituted, "waited": tally.waited, "admitted": tally.admitted}
    return {f"{name}_per_token": count / tally.forwards for name, count in counts.items()}
