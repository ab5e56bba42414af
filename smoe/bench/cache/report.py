"""From rows to figures and to the lines that say where Least-Stale wins, where it loses and why."""

from collections import Counter
from collections.abc import Sequence
from statistics import median

from rich.console import Console
from rich.table import Table

from smoe.bench.cache.grid import DEMAND, OPEN
from smoe.bench.cache.winners import Contest, Winner, ratio, tally
from smoe.bench.result import Figure


def winner_figures(found: Sequence[Winner]) -> list[Figure]:
    """A figure a trace: in how many regions each policy wins or ties, and how much of the way to Belady that makes."""
    figures = []
    for trace in sorted({winner.region.trace for winner in found}):
        here = [winner for winner in found if winner.region.trace == trace]
        counts = Counter(name for winner in here for name in winner.policies)
        closed = [winner.closed for winner in here if winner.closed is not None]
        figures.append(
            Figure(
                figure=f"{trace}: way from random to Belady that the best causal eviction makes, median",
                value=100 * median(closed) if closed else None,
                unit="%",
                bound=f"of {len(here)} regions best: " + ", ".join(f"{n} {c}" for n, c in counts.most_common(4)),
            )
        )
    return [*figures, *_above_belady(found)]


def _above_belady(found: Sequence[Winner]) -> list[Figure]:
    """How far Belady is a ceiling, by the counts themselves."""
    figures = []
    for title, here in (
        ("demand only, where Belady is a ceiling", [w for w in found if w.region.prefetch == DEMAND]),
        ("with prefetch, where Belady is no ceiling", [w for w in found if w.region.prefetch != DEMAND]),
    ):
        if not here:
            continue
        above = [w for w in here if w.beats_belady]
        most = max(above, key=lambda w: w.hit_rate - w.belady, default=None)
        figures.append(
            Figure(
                figure=f"{title}: regions in which a causal eviction is better",
                value=float(len(above)),
                unit=f"of {len(here)}",
                bound=None
                if most is None
                else f"most by {100 * (most.hit_rate - most.belady):.1f} points: {most.policies[0]}, "
                f"{most.region.trace}, {most.region.percent:g} %, {most.region.pool} pool, {most.region.prefetch}",
            )
        )
    return figures


def least_stale_figures(found: Sequence[Contest]) -> list[Figure]:
    """With and without prefetch apart, since what the policy protects is prefetched; SpecMD's own rules apart too."""
    figures = []
    kept, opened = [c for c in found if c.region.pool != OPEN], [c for c in found if c.region.pool == OPEN]
    for title, here in (
        ("demand only", [c for c in kept if c.region.prefetch == DEMAND]),
        ("with prefetch", [c for c in kept if c.region.prefetch != DEMAND]),
        ("SpecMD's pool, demand only", [c for c in opened if c.region.prefetch == DEMAND]),
        ("SpecMD's pool, with prefetch", [c for c in opened if c.region.prefetch != DEMAND]),
    ):
        if not here:
            continue
        counts = tally(here)
        figures.append(
            Figure(
                figure=f"Least-Stale, {title}: regions won",
                value=float(counts["wins"]),
                unit=f"of {len(here)}",
                bound=f"ties {counts['ties']}, loses {counts['loses']}, against every other causal eviction",
            )
        )
        for name, gains, collisions in (
            ("lru", [c.gain_touch for c in here], [(c.collisions_touch, c.collisions) for c in here]),
            ("lru:no-touch", [c.gain_no_touch for c in here], [(c.collisions_no_touch, c.collisions) for c in here]),
        ):
            theirs, own = sum(a for a, _ in collisions), sum(b for _, b in collisions)
            times = ratio(theirs, own)
            figures.append(
                Figure(
                    figure=f"Least-Stale, {title}: hit rate over {name}, median",
                    value=100 * median(gains),
                    unit="points",
                    bound=f"{100 * min(gains):+.1f}..{100 * max(gains):+.1f}; "
                    f"collision misses {theirs:,} against {own:,}" + ("" if times is None else f" ({times:,.1f}x)"),
                )
            )
    return figures


def explain(contest: Contest) -> str:
    """One line: the verdict in this region and the collisions behind it."""
    region = contest.region
    where = f"{region.trace} {region.mode} {region.percent:g} % {region.pool} pool, prefetch {region.prefetch}"
    against = f"{contest.best_other} by {100 * abs(contest.gain_best_other):.1f} points"
    touch, no_touch, own = contest.collisions_touch, contest.collisions_no_touch, contest.collisions
    collisions = f"collisions: {own:,}, lru {touch:,}, lru:no-touch {no_touch:,}"
    return f"{where}: {contest.variant} {contest.verdict} against {against}; {collisions}; {why(contest)}"


def why(contest: Contest) -> str:
    """The rule that the counts of this region speak for."""
    if contest.region.prefetch == DEMAND:
        return "nothing is prefetched, so nothing is protected: only the order of eviction counts"
    if contest.region.pool != OPEN and not contest.collisions_no_touch:
        return "no collisions under any policy: slots in flight and hits of the pass are protected here"
    if contest.collisions_touch <= contest.collisions and contest.verdict != "wins":
        return "LRU that counts a prefetch as a use has no more collisions: recency already protects what is coming"
    if contest.verdict == "wins":
        return "what was brought in for this forward is kept until it is used, and what was used longest ago goes first"
    return "it protects what is coming, but forgets how often an expert is used"


def print_winners(found: Sequence[Winner]) -> None:
    note = "Belady: a ceiling where prefetch is none; with prefetch it does not know what will be fetched ahead"
    table = Table(title="best causal eviction by region", title_justify="left", caption=note, caption_justify="left")
    for column in ("trace", "resident", "pool", "prefetch", "best", "hit", "random", "Belady", "way"):
        table.add_column(
            column, justify="right" if column in ("resident", "hit", "random", "Belady", "way") else "left"
        )
    for w in found:
        r = w.region
        table.add_row(
            f"{r.trace} {r.mode}",
            f"{r.percent:g} %",
            r.pool,
            r.prefetch,
            ", ".join(w.policies[:3]) + (" ..." if len(w.policies) > 3 else ""),
            *(f"{100 * rate:.1f}" for rate in (w.hit_rate, w.floor, w.belady)),
            "" if w.closed is None else f"{100 * w.closed:.0f} %",
        )
    Console().print(table)
