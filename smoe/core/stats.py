"""Counters that an engine reports; plain numbers that add up and subtract."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import zip_longest
from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertStats:
    """Counts since start. An expert is asked for once a pass: one (forward, layer, distinct expert) use. It is then

    hit: resident. late: its transfer is in flight. Else a miss, which is a collision_miss if it was brought in during
    this same forward and has been evicted since, and a cold_miss if not; compulsory_misses are those of the cold ones
    never brought in before. hits + late + misses are all uses.

    What is late or missed is waited for, but for computed_in_place: uses computed where the expert is, without a slot,
    and computed_in_place_rows, the rows that they had. They are counted by cause all the same; what was late and not
    waited for, computed in place or substituted, may be late again.

    prefetched: prefetches begun. Each ends, if it does, as prefetch_used (asked for on time), as late, or as wasted
    (evicted, cancelled or failed without having been asked for). admitted: transfers begun by background admission.
    cancelled: prefetches and admissions taken back before they went to the tier below, their pass having come and not
    asked for them.
    prefetch_pauses: how often prefetching into a layer stopped itself because it did not pay.

    substituted: (row, choice) pairs computed by another expert than the router's; substituted_mass: their summed router
    weight, normalised over a row's choices. How the expert asked for is counted does not change.

    bytes_moved are those that came for slots (of residuals, those that were read), wait_s the time that passes waited
    for them, transfer_s the time in which at least one transfer was under way. Of each link that they came over, disk
    to memory and host memory to slots, likewise: transfers, bytes and the time in which it carried something.
    `budget_bytes` bounds expert memory, slots and host memory together, and `peak_bytes` is the most ever in use.
    """

    hits: int = 0
    late: int = 0
    cold_misses: int = 0
    collision_misses: int = 0
    compulsory_misses: int = 0
    computed_in_place: int = 0
    computed_in_place_rows: int = 0
    prefetched: int = 0
    prefetch_used: int = 0
    wasted: int = 0
    cancelled: int = 0
    prefetch_pauses: int = 0
    admitted: int = 0
    evictions: int = 0
    substituted: int = 0
    substituted_mass: float = 0.0
    bytes_moved: int = 0
    transfer_s: float = 0.0
    wait_s: float = 0.0
    disk_transfers: int = 0
    disk_bytes: int = 0
    disk_s: float = 0.0
    host_transfers: int = 0
    host_bytes: int = 0
    host_s: float = 0.0
    budget_bytes: int = 0
    peak_bytes: int = 0

    @property
    def misses(self) -> int:
        return self.cold_misses + self.collision_misses

    def plus(self, more: Self) -> Self:
        """The two levels add up too."""
        return type(self)(**{f.name: getattr(self, f.name) + getattr(more, f.name) for f in fields(self)})

    def since(self, earlier: Self) -> Self:
        """Counts of an interval: differences, except the two levels `budget_bytes` and `peak_bytes`."""
        levels = {"budget_bytes", "peak_bytes"}
        values = {
            f.name: getattr(self, f.name) - (0 if f.name in levels else getattr(earlier, f.name)) for f in fields(self)
        }
        return type(self)(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftStats:
    """windows: steps in which tokens were drafted for some sequence. drafted: tokens proposed, over all sequences;
    accepted: those of them that the model kept. draft_s is the time of drafting, verify_s that of the rest of those
    steps. pauses: how often drafting stopped itself because it did not pay. saved_s: what the tokens of those steps
    would have taken without a draft, as measured now and then, less what they took; negative for a loss.
    """

    windows: int = 0
    drafted: int = 0
    accepted: int = 0
    draft_s: float = 0.0
    verify_s: float = 0.0
    pauses: int = 0
    saved_s: float = 0.0

    def plus(self, more: Self) -> Self:
        return type(self)(**{f.name: getattr(self, f.name) + getattr(more, f.name) for f in fields(self)})

    def since(self, earlier: Self) -> Self:
        return type(self)(**{f.name: getattr(self, f.name) - getattr(earlier, f.name) for f in fields(self)})


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingStats:
    """What routers chose, in (row, chosen expert) pairs; rows are those of prompts and of drafts too.

    `loads[i][e]` of expert e in the i-th MoE layer. `by_device[d]` were sent to device d, whose experts they are, and
    `local` of them came from rows on that same device: their share is the local activation rate.
    """

    loads: tuple[tuple[int, ...], ...] = ()
    by_device: tuple[int, ...] = ()
    local: int = 0

    @property
    def choices(self) -> int:
        return sum(map(sum, self.loads))

    def plus(self, more: Self) -> Self:
        return self._with(more, 1)

    def since(self, earlier: Self) -> Self:
        return self._with(earlier, -1)

    def _with(self, other: Self, sign: int) -> Self:
        by_layer = zip_longest(self.loads, other.loads, fillvalue=())
        return type(self)(
            loads=tuple(_added(mine, theirs, sign) for mine, theirs in by_layer),
            by_device=_added(self.by_device, other.by_device, sign),
            local=self.local + sign * other.local,
        )


def _added(mine: Sequence[int], theirs: Sequence[int], sign: int) -> tuple[int, ...]:
    """Either may be shorter, or empty where nothing was counted yet."""
    return tuple(a + sign * b for a, b in zip_longest(mine, theirs, fillvalue=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficStats:
    """What devices exchanged, added up over them: `calls` of collectives, bytes sent to others on the same host and on
    other hosts, and the time that they spent in exchanges, waiting for each other included."""

    calls: int = 0
    host_bytes: int = 0
    network_bytes: int = 0
    busy_s: float = 0.0

    def plus(self, more: Self) -> Self:
        return type(self)(**{f.name: getattr(self, f.name) + getattr(more, f.name) for f in fields(self)})

    def since(self, earlier: Self) -> Self:
        return type(self)(**{f.name: getattr(self, f.name) - getattr(earlier, f.name) for f in fields(self)})


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorStats:
    """What those who run the steps count; of several devices, together."""

    experts: ExpertStats = ExpertStats()
    routing: RoutingStats = RoutingStats()
    traffic: TrafficStats = TrafficStats()

    def plus(self, more: Self) -> Self:
        """Of two at the same time: levels add up as well."""
        return type(self)(
            experts=self.experts.plus(more.experts),
            routing=self.routing.plus(more.routing),
            traffic=self.traffic.plus(more.traffic),
        )

    def after(self, earlier: Self) -> Self:
        """Of one that took the place of another: as `plus`, but of the levels the later budget and the higher peak."""
        budget = self.experts.budget_bytes or earlier.experts.budget_bytes
        peak = max(self.experts.peak_bytes, earlier.experts.peak_bytes)
        both = self.plus(earlier)
        return replace(both, experts=replace(both.experts, budget_bytes=budget, peak_bytes=peak))


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """A snapshot of one engine. Counts are since start; `kv_*` are arena rows. Memory is that of all its processes:
    `rss_bytes` now, `peak_rss_bytes` the most of each."""

    waiting: int
    running: int
    prompt_tokens: int
    generated_tokens: int
    steps: int
    kv_rows_used: int
    kv_rows_total: int
    experts: ExpertStats
    peak_rss_bytes: int
    rss_bytes: int = 0
    draft: DraftStats = DraftStats()
    routing: RoutingStats = RoutingStats()
    traffic: TrafficStats = TrafficStats()

    def since(self, earlier: Self) -> Self:
        """Counts of an interval; levels as they are now."""
        return replace(
            self,
            prompt_tokens=self.prompt_tokens - earlier.prompt_tokens,
            generated_tokens=self.generated_tokens - earlier.generated_tokens,
            steps=self.steps - earlier.steps,
            experts=self.experts.since(earlier.experts),
            draft=self.draft.since(earlier.draft),
            routing=self.routing.since(earlier.routing),
            traffic=self.traffic.since(earlier.traffic),
        )
