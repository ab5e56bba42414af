"""What a decode step can take at least: the arithmetic, or the bytes that have to come over the link."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from smoe.bench.offload.sample import Sample


@dataclass(frozen=True, slots=True)
class Bound:
    """`compute_s` a step of the resident model; `link_bytes_per_s` of plain direct reads."""

    compute_s: float
    link_bytes_per_s: float

    def step_s(self, moved_bytes: float) -> float:
        return max(self.compute_s, moved_bytes / self.link_bytes_per_s)

    def is_link(self, moved_bytes: float) -> bool:
        """Whether the link, not the arithmetic, bounds the step."""
        return moved_bytes / self.link_bytes_per_s > self.compute_s

    def share(self, sample: Sample) -> float:
        """Of the bound that the sample's mean step reaches; 1 is the bound itself."""
        return self.step_s(sample.moved_bytes_per_step) / sample.mean_step_s

    def hidden_share(self, sample: Sample) -> float | None:
        """Of the time that the bytes take on the link, how much nobody waited for; None without any bytes."""
        transfer_s = sample.experts.bytes_moved / self.link_bytes_per_s
        return None if transfer_s == 0 else min(1.0, max(0.0, 1 - sample.experts.wait_s / transfer_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One turn of all contenders at one capacity, seconds apart, on one prompt."""

    bound: Bound
    samples: dict[str, Sample]


def shares(rounds: Sequence[Round], name: str) -> list[float]:
    return [r.bound.share(r.samples[name]) for r in rounds]


def tokens_per_s(rounds: Sequence[Round], name: str) -> list[float]:
    return [1 / r.samples[name].mean_step_s for r in rounds]


def speedups(rounds: Sequence[Round], name: str, base: str) -> list[float]:
    """Of `name` over `base`, paired by round; above 1 is faster."""
    return [r.samples[base].mean_step_s / r.samples[name].mean_step_s for r in rounds]


def hidden(rounds: Sequence[Round], name: str) -> float | None:
    found = [share for r in rounds if (share := r.bound.hidden_share(r.samples[name])) is not None]
    return median(found) if found else None
