"""Request traces: when requests came, and how long prompts and answers were. Packaged samples, or files."""

from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "assets" / "workloads"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """`blocks` name the prompt's content block by block: prompts with equal first names begin with the same tokens."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTrace:
    """Rows in order of time, the first at 0 s. `skipped` rows were malformed; `block_tokens` are those of one block."""

    name: str
    rows: tuple[Arrival, ...]
    block_tokens: int
    skipped: int = 0

    @property
    def rate(self) -> float | None:
        """Requests a second over its whole time; None where all come at once."""
        span = self.rows[-1].at_s
        return (len(self.rows) - 1) / span if span > 0 else None


def packaged_requests() -> list[str]:
    return sorted(path.name.split(".")[0] for path in FOLDER.glob("*.gz"))
