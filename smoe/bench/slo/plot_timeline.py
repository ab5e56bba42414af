"""One run in time: how many requests run and wait, and how many expert uses are hits."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from smoe.bench.slo.study import Point
from smoe.bench.slo.timeline import Sample


def plot_timeline(point: Point, path: Path, title: str) -> Path:
    """Of one run: how many run and wait, and what share of expert uses were hits between two looks."""
    from matplotlib import pyplot

    samples = point.timeline
    times = [sample["at_s"] for sample in samples]
    hits = _hit_shares(samples)
    rows = 2 if hits else 1
    figure, panels = pyplot.subplots(
        rows, 1, figsize=(10, 2.8 * rows), layout="constrained", sharex=True, squeeze=False
    )
    queue = panels[0][0]
    for key, color in (("running", "C0"), ("waiting", "C3")):
        if any(key in sample for sample in samples):
            queue.step(
                times, [sample.get(key, float("nan")) for sample in samples], where="post", color=color, label=key
            )
    begun = point.load.begun_s
    in_flight = _in_flight(point)
    queue.step(
        [at - begun for at, _ in in_flight],
        [n for _, n in in_flight],
        where="post",
        color="grey",
        alpha=0.6,
        label="sent, not ended (client)",
    )
    queue.set(ylabel="requests")
    queue.legend(fontsize=8)
    if hits:
        panels[1][0].plot([at for at, _ in hits], [share for _, share in hits], marker=".", color="C2")
        panels[1][0].set(ylabel="expert hits, %", ylim=(0, 105))
    for row in panels:
        row[0].grid(alpha=0.3)
    panels[-1][0].set(xlabel="seconds since the first request was due")
    return save(figure, path, f"{title}; {point.offered}")


def _hit_shares(samples: Sequence[Sample]) -> list[tuple[float, float]]:
    have = [sample for sample in samples if "expert_uses" in sample]
    shares = []
    for before, after in itertools.pairwise(have):
        uses = after["expert_uses"] - before["expert_uses"]
        if uses > 0:
            shares.append((after["at_s"], 100 * (after["expert_hits"] - before["expert_hits"]) / uses))
    return shares


def _in_flight(point: Point) -> list[tuple[float, int]]:
    changes = [(record.sent_s, 1) for record in point.load.records]
    changes += [(record.chunk_s[-1], -1) for record in point.load.records if not record.failed]
    changes += [(record.sent_s, -1) for record in point.load.records if record.failed]
    counts, now = [], 0
    for at, change in sorted(changes):
        now += change
        counts.append((at, now))
    return counts


def save(figure: Any, path: Path, title: str) -> Path:
    from matplotlib import pyplot

    figure.suptitle(title, fontsize=9)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path
