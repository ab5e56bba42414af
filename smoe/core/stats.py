"""Counters that an engine reports; plain numbers that add up and subtract."""

from dataclasses import dataclass, fields
from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertStats:
    """Counts since start. An access is one (forward, layer, distinct expert) use.

    hit: resident when asked. cold_miss: never resident before. collision_miss: was resident and had been evicted.
    late: asked while its transfer was in flight. wasted: prefetched and evicted unused. Bytes are those read from
    the tier below; `budget_bytes` bounds expert memory and `peak_bytes` is the most that was ever in use.
    """

    hits: int = 0
    cold_misses: int = 0
    collision_misses: int = 0
    late: int = 0
    wasted: int = 0
    evictions: int = 0
    bytes_moved: int = 0
    wait_s: float = 0.0
    budget_bytes: int = 0
    peak_bytes: int = 0

    @property
    def misses(self) -> int:
        return self.cold_misses + self.collision_misses

    def since(self, earlier: Self) -> Self:
        """Counts of an interval: differences, except the two levels `budget_bytes` and `peak_bytes`."""
        levels = {"budget_bytes", "peak_bytes"}
        values = {
            f.name: getattr(self, f.name) - (0 if f.name in levels else getattr(earlier, f.name)) for f in fields(self)
        }
        return type(self)(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """A snapshot of one engine. Token counts are since start; `kv_*` are arena rows."""

    waiting: int
    running: int
    prompt_tokens: int
    generated_tokens: int
    steps: int
    kv_rows_used: int
    kv_rows_total: int
    experts: ExpertStats
    peak_rss_bytes: int
