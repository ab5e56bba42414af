"""Who wins where, between random and Belady. Torch-free.

Belady is a ceiling where nothing is prefetched. With prefetch it is none, though seldom beaten: it knows what will be
asked for, and neither what will be fetched ahead nor that such a fetch takes a slot whatever is in it.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from smoe.bench.cache.grid import BELADY, CAUSAL, LEAST_STALE, LRU_NO_TOUCH, LRU_TOUCH, RANDOM, Region
from smoe.bench.cache.rows import Row

TIE = 0.001
"""Hit rates closer than this are a tie."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Winner:
    """`policies` tie for the best hit rate among those that know the past alone. `closed` is the part of the way from
    random to Belady that it makes, above 1 where it beats Belady; None where the two are the same."""

    region: Region
    policies: tuple[str, ...]
    hit_rate: float
    floor: float
    belady: float
    closed: float | None

    @property
    def beats_belady(self) -> bool:
        return self.hit_rate - self.belady > TIE


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """The best Least-Stale variant against both LRUs. Gains are differences of hit rates; collisions are misses of
    experts that were brought in and evicted within the same forward."""

    region: Region
    variant: str
    hit_rate: float
    gain_touch: float
    gain_no_touch: float
    gain_best_other: float
    best_other: str
    collisions: int
    collisions_touch: int
    collisions_no_touch: int

    @property
    def verdict(self) -> str:
        """Against every other policy: wins, ties or loses."""
        if abs(self.gain_best_other) <= TIE:
            return "ties"
        return "wins" if self.gain_best_other > 0 else "loses"


def by_region(rows: Iterable[Row]) -> dict[Region, dict[str, Row]]:
    regions: dict[Region, dict[str, Row]] = defaultdict(dict)
    for each in rows:
        regions[each.point.region][each.point.eviction] = each
    return dict(regions)


def winners(rows: Iterable[Row]) -> list[Winner]:
    found = []
    for region, evictions in sorted(by_region(rows).items()):
        rates = {name: evictions[name].hit_rate for name in CAUSAL if name in evictions}
        best = max(rates.values())
        floor, belady = evictions[RANDOM].hit_rate, evictions[BELADY].hit_rate
        found.append(
            Winner(
                region=region,
                policies=tuple(name for name, rate in rates.items() if best - rate <= TIE),
                hit_rate=best,
                floor=floor,
                belady=belady,
                closed=None if belady - floor <= TIE else (best - floor) / (belady - floor),
            )
        )
    return found


def contests(rows: Iterable[Row]) -> list[Contest]:
    """Regions that have a Least-Stale variant, both LRUs and something else."""
    found = []
    for region, evictions in sorted(by_region(rows).items()):
        variants = [name for name in LEAST_STALE if name in evictions]
        others = [name for name in CAUSAL if name in evictions and name not in LEAST_STALE]
        if not variants or not {LRU_TOUCH, LRU_NO_TOUCH} <= evictions.keys():
            continue
        variant = max(variants, key=lambda name: evictions[name].hit_rate)
        best_other = max(others, key=lambda name: evictions[name].hit_rate)
        own, touch, no_touch = evictions[variant], evictions[LRU_TOUCH], evictions[LRU_NO_TOUCH]
        found.append(
            Contest(
                region=region,
                variant=variant,
                hit_rate=own.hit_rate,
                gain_touch=own.hit_rate - touch.hit_rate,
                gain_no_touch=own.hit_rate - no_touch.hit_rate,
                gain_best_other=own.hit_rate - evictions[best_other].hit_rate,
                best_other=best_other,
                collisions=own.collisions,
                collisions_touch=touch.collisions,
                collisions_no_touch=no_touch.collisions,
            )
        )
    return found


def ratio(theirs: int, own: int) -> float | None:
    """How many collisions they have for each of ours; None where we have none."""
    return None if own == 0 else theirs / own


def tally(found: Sequence[Contest]) -> dict[str, int]:
    counts = {"wins": 0, "ties": 0, "loses": 0}
    for contest in found:
        counts[contest.verdict] += 1
    return counts
