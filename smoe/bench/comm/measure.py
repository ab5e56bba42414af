"""Passes of every case in turn, and what the ranks' clocks and ledgers say of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TypeVar

from smoe.bench.comm.alpha_beta import Line, fit
from smoe.bench.comm.cases import Case, Work
from smoe.bench.comm.formula import PURPOSES, LayerBytes, by_formula
from smoe.bench.comm.messages import Pass, Seen
from smoe.bench.comm.ranks import Ranks
from smoe.bench.comm.timed import Moved, seconds_of, together
from smoe.collectives.ledger import Traffic
from smoe.core.placement import Placement

PROBE_BYTES = (16, 4096, 32768, 262144, 1048576)
Key = tuple[int, int, str, str]
"""Of a series: Mbit/s, ranks, name of the step, name of the case."""
Item = TypeVar("Item")
_LONG_ROWS = 2048
_DISPATCH = ("dispatch", "combine")


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """One case on one step, over all ranks: bytes a layer by purpose as the ledgers have them, and by the formula."""

    ledger: dict[str, float]
    formula: LayerBytes
    classes: dict[str, float]
    next_tokens: tuple[int, ...]

    @property
    def total(self) -> float:
        return sum(self.ledger.values())

    @property
    def equal(self) -> bool:
        """To the byte over all layers."""
        return all(abs(self.ledger[name] - self.formula.wire[name]) < 1e-3 for name in PURPOSES)


@dataclass(frozen=True, slots=True)
class Timed:
    """One pass. `comm_s` is the time in which exchanges are under way, without waiting for other ranks' arithmetic, but
    with what of one's own goes on meanwhile; `layer_comm_s` that of the layers' own, a layer. `dispatch_share` is what
    dispatch and combine are of the MoE layers' time."""

    step_s: float
    comm_s: float
    layer_comm_s: float
    dispatch_share: float

    @property
    def share(self) -> float:
        return self.comm_s / self.step_s


@dataclass(slots=True)
class Series:
    """All passes of one case on one step at one rate."""

    case: Case
    work: Work
    counted: Counted
    passes: list[Timed] = field(default_factory=list)

    def tokens_per_s(self) -> list[float]:
        return [self.work.rows / timed.step_s for timed in self.passes]

    @property
    def rate(self) -> float:
        return median(self.tokens_per_s())

    @property
    def share(self) -> float:
        return median(timed.share for timed in self.passes)

    @property
    def layer_comm_s(self) -> float:
        return median(timed.layer_comm_s for timed in self.passes)


def count(ranks: Ranks, case: Case, work: Work, placement: Placement, hidden: int, dtype_bytes: int) -> Counted:
    """One pass that is not timed."""
    seen: list[Seen] = ranks.ask("see", case, work)
    layers = len(placement.layers)
    ledger = {name: sum(_of(each, name).wire for each in seen) / layers for name in PURPOSES}
    classes = {
        link: sum(getattr(_of(each, name), link) for each in seen for name in PURPOSES) / layers
        for link in ("device", "host", "network")
    }
    formula = by_formula(case, placement, [each.ids for each in seen], hidden, dtype_bytes)
    return Counted(ledger=ledger, formula=formula, classes=classes, next_tokens=seen[0].next_tokens)


def _of(seen: Seen, purpose: str) -> Traffic:
    """One rank alone does not gather."""
    return seen.traffic.get(purpose, Traffic())


def time_pass(ranks: Ranks, case: Case, work: Work, layers: int) -> Timed:
    passes: list[Pass] = ranks.ask("run", case, work)
    moved = together([each.exchanges for each in passes])
    step_s = max(each.end_s for each in passes) - max(each.start_s for each in passes)
    own_s = seconds_of([each for each in moved if each.purpose in PURPOSES])
    return Timed(step_s, seconds_of(moved), own_s / layers, _dispatch_share(moved))


def rounds(ranks: Ranks, series: Sequence[Series], layers: int, repeats: int) -> None:
    """Each series gets `repeats` passes, of a long step one less, which varies less; they take turns."""
    for number in range(repeats):
        for each in in_turn(series, number):
            if number == 0 or number < repeats - (each.work.rows >= _LONG_ROWS):
                each.passes.append(time_pass(ranks, each.case, each.work, layers))


def in_turn(items: Sequence[Item], number: int) -> Sequence[Item]:
    """In their order on even turns, backwards on odd ones."""
    return items if number % 2 == 0 else items[::-1]


def probe(ranks: Ranks, repeats: int) -> tuple[dict[str, Line], dict[str, list[tuple[int, float]]]]:
    """The link, by kind of exchange, from exchanges of nothing but bytes; and the points that the lines go through."""
    points: dict[str, list[tuple[int, float]]] = {}
    for _ in range(repeats):
        by_rank = ranks.ask("probe", PROBE_BYTES)
        kinds = [kind for kind, _ in by_rank[0]]
        for kind, moved in zip(kinds, together([[e for _, e in each] for each in by_rank]), strict=True):
            points.setdefault(kind, []).append((moved.busiest_bytes, moved.seconds))
    return {kind: fit(_medians(found)) for kind, found in points.items()}, points


def _medians(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    by_size: dict[int, list[float]] = {}
    for nbytes, seconds in points:
        by_size.setdefault(nbytes, []).append(seconds)
    return [(nbytes, median(seconds)) for nbytes, seconds in by_size.items()]


def _dispatch_share(moved: Sequence[Moved]) -> float:
    """From the end of each layer's reduce to the start of its gather: the MoE layer with its exchanges."""
    layer_s = sent_s = 0.0
    reduced = moved[0].ended_s if moved else 0.0
    passes: list[Moved] = []
    for each in moved:
        if each.purpose == "reduce":
            reduced, passes = each.ended_s, []
        elif each.purpose in _DISPATCH:
            passes.append(each)
        elif each.purpose == "gather":
            sent_s += seconds_of(passes)
            layer_s += each.began_s - reduced
    return sent_s / layer_s if layer_s else 0.0


def ratio(better: Series, base: Series) -> list[float]:
    """Throughput over `base`'s, pass by pass."""
    return [b.step_s / a.step_s for a, b in zip(better.passes, base.passes, strict=True)]
