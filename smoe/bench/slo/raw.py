"""What every figure can be worked out from again: each request's times, and what the server said of itself."""

import gzip
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from smoe.bench.slo.run import NAME, key_of
from smoe.bench.slo.study import Point


def write_raw(points: Sequence[Sequence[Point]], folder: Path) -> list[Path]:
    """A JSON object a line, seconds since the run began: `slo.requests.jsonl.gz`, and `slo.timeline.jsonl.gz` where the
    server has /metrics."""
    folder.mkdir(parents=True, exist_ok=True)
    every = [point for runs in points for point in runs]
    paths = [_write(folder / f"{NAME}.requests.jsonl.gz", (line for point in every for line in _requests(point)))]
    if any(point.timeline for point in every):
        samples = ({**key_of(point), **sample} for point in every for sample in point.timeline)
        paths.append(_write(folder / f"{NAME}.timeline.jsonl.gz", samples))
    return paths


def _requests(point: Point) -> Iterator[dict[str, object]]:
    begun = point.load.begun_s
    for record in point.load.records:
        yield {
            **key_of(point),
            "request_id": record.request_id,
            "scheduled_s": round(record.scheduled_s - begun, 6),
            "sent_s": round(record.sent_s - begun, 6),
            "prompt_tokens": record.prompt_tokens,
            "output_tokens": record.output_tokens,
            "chunk_s": [round(at - begun, 6) for at in record.chunk_s],
            "chunk_tokens": record.chunk_tokens,
            "error": record.error,
            "status": record.status,
        }


def _write(path: Path, lines: Iterable[object]) -> Path:
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    return path
