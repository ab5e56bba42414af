"""One simulation's counts beside the point that asked for them. Torch-free."""

import csv
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from smoe.bench.cache.grid import Point
from smoe.core.stats import ExpertStats


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """`accesses` are hits, late and misses together; `transfers` experts brought in for any reason."""

    point: Point
    accesses: int
    hits: int
    cold: int
    collisions: int
    late: int
    prefetched: int
    wasted: int
    transfers: int
    tokens: int

    @property
    def hit_rate(self) -> float:
        return self.hits / max(1, self.accesses)

    @property
    def collision_rate(self) -> float:
        return self.collisions / max(1, self.accesses)

    def to_json(self) -> dict[str, Any]:
        body = asdict(self)
        return {**body.pop("point"), **body, "hit_rate": round(self.hit_rate, 5)}


def row(point: Point, counts: ExpertStats, transfers: int, tokens: int) -> Row:
    return Row(
        point=point,
        accesses=counts.hits + counts.late + counts.misses,
        hits=counts.hits,
        cold=counts.cold_misses,
        collisions=counts.collision_misses,
        late=counts.late,
        prefetched=counts.prefetched,
        wasted=counts.wasted,
        transfers=transfers,
        tokens=tokens,
    )


def write_rows(rows: Sequence[Row], path: Path) -> Path:
    """One line a simulation."""
    path.parent.mkdir(parents=True, exist_ok=True)
    bodies = [each.to_json() for each in rows]
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, bodies[0])
        writer.writeheader()
        writer.writerows(bodies)
    return path
