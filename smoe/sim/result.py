"""What one simulation counted."""

from dataclasses import asdict, dataclass
from typing import Any

from smoe.core.stats import ExpertStats
from smoe.sim.drafts import DraftCount


@dataclass(frozen=True, slots=True, kw_only=True)
class SimResult:
    """`experts` are counts as the engine's; `bytes_moved` is 0 without an expert's size, `wait_s` virtual.

    `transfers` were carried by the link. `seconds` is the virtual time of the whole replay, None without a link, of
    which `prompt_s` went by in forwards with prompts that go through whole; `link_busy_share` is the part
    of it in which the link carried something.
    """

    policy: str
    capacity: str
    pool: str
    mode: str
    batch: int
    num_slots: int
    num_layers: int
    num_experts: int
    forwards: int
    tokens: int
    experts: ExpertStats
    transfers: int
    seconds: float | None
    prompt_s: float | None
    link_busy_share: float | None
    draft: DraftCount | None = None

    @property
    def accesses(self) -> int:
        stats = self.experts
        return stats.hits + stats.late + stats.misses

    @property
    def hit_rate(self) -> float:
        return self.experts.hits / max(1, self.accesses)

    @property
    def ms_per_token(self) -> float | None:
        return None if self.seconds is None else 1e3 * self.seconds / max(1, self.tokens)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        derived = {"accesses": self.accesses, "hit_rate": self.hit_rate, "ms_per_token": self.ms_per_token}
        return {**asdict(self), **derived}
