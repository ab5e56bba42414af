"""What is compared: schedules, on experts placed in one way or another; and the steps that they run."""

from dataclasses import dataclass
from typing import Literal

from smoe.core.placement import Placement

Span = tuple[tuple[int, ...], int, int, int]
"""(token ids, first KV row, tokens before, state): what Batch.build takes."""
VANILLA, GROUPED = "vanilla", "grouped"


@dataclass(frozen=True, slots=True)
class Case:
    """`oracle` is `speculative` with tables that are always right. `capacity_factor` is that of Speculative."""

    name: str
    schedule: Literal["allreduce", "scatter", "speculative", "oracle"]
    placement: str = VANILLA
    dedup: bool = True
    capacity_factor: float = 1.0


BASE = Case("allreduce", "allreduce", dedup=False)
DEDUP = Case("allreduce, de-duplicated", "allreduce")
SCATTER = Case("scatter", "scatter")
SHUFFLED = Case("speculative, vanilla placement", "speculative")
BEST = Case("speculative + grouping", "speculative", GROUPED)
RAGGED = Case("speculative + grouping, ragged", "speculative", GROUPED, capacity_factor=1.25)
ORACLE = Case("oracle tables + grouping", "oracle", GROUPED)
CASES = (BASE, DEDUP, SCATTER, SHUFFLED, BEST, RAGGED, ORACLE)


@dataclass(frozen=True, slots=True)
class Work:
    """One step: `rows` tokens of prompts, or of that many sequences one each."""

    phase: Literal["prefill", "decode"]
    spans: tuple[Span, ...]

    @property
    def rows(self) -> int:
        return sum(len(span[0]) for span in self.spans)

    @property
    def name(self) -> str:
        return f"{self.phase} {self.rows}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlan:
    """What every rank loads: a folder, and its experts by each placement."""

    folder: str
    placements: dict[str, Placement]
    kv_rows: int
