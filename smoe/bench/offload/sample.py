"""What one decoding of one contender gave. Plain values, so that it crosses processes as JSON."""

from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from smoe.core.stats import ExpertStats


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One request, batch 1. `step_s` are the decode steps after the first token, `experts` counts them alone;
    `peak_rss_bytes` is the process's highest so far."""

    ttft_s: float
    step_s: list[float]
    experts: ExpertStats = field(default_factory=ExpertStats)
    token_ids: list[int] = field(default_factory=list)
    peak_rss_bytes: int = 0

    @property
    def mean_step_s(self) -> float:
        return sum(self.step_s) / len(self.step_s)

    @property
    def median_step_s(self) -> float:
        return median(self.step_s)

    @property
    def moved_bytes_per_step(self) -> float:
        return self.experts.bytes_moved / len(self.step_s)

    @property
    def hit_rate(self) -> float:
        return self.experts.hits / max(1, self.experts.hits + self.experts.misses)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> "Sample":
        return cls(**{**body, "experts": ExpertStats(**body.get("experts", {}))})
