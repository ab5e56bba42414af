"""What a regroup job puts into the folder beside the placement: pictures, and a record of the run."""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from smoe.clustering.layer_job import LayerResult, task_bytes
from smoe.clustering.plots import plot_calibration, plot_convergence, plot_lar_by_layer
from smoe.clustering.regroup import Regrouped, RegroupJob


def pictures(job: RegroupJob, regrouped: Regrouped, results: Sequence[LayerResult]) -> dict[str, bytes]:
    """PNG files by name, as far as there is something to draw."""
    config, devices = job.config, regrouped.placement.num_devices
    title = f"{config.trace or config.load}: {config.solver}, {devices} devices"
    with tempfile.TemporaryDirectory() as folder:
        drawn: list[Path] = []
        histories = [result.history for result in results]
        if job.fit is not None and any(len(history) > 1 for history in histories):
            setting = f"theta {config.theta}, load up to {config.max_load or 'any'}"
            drawn.append(plot_convergence(Path(folder) / "convergence.png", {setting: histories}, title))
        if (evaluation := regrouped.evaluation) is not None:
            judged = f"{title}; {evaluation.tokens:,} tokens held out"
            drawn.append(plot_lar_by_layer(Path(folder) / "lar.png", evaluation.lar, job.layers, judged))
            decided = {name: quality for name, quality in evaluation.tables.items() if quality.bins}
            drawn.append(plot_calibration(Path(folder) / "calibration.png", decided, judged))
        return {path.name: path.read_bytes() for path in drawn}


def run_record(job: RegroupJob, results: Sequence[LayerResult]) -> bytes:
    """JSON of what differs from run to run: seconds and memory of each layer's task; 0 bytes where it shared a
    process."""
    size = (0, 0) if job.fit is None else (job.fit.num_tokens, job.fit.top_k)
    record = {
        "task_bytes_reserved": task_bytes(*size, job.num_experts),
        "layers": [
            {"layer": layer, "seconds": round(result.seconds, 3), "peak_rss_bytes": result.peak_rss_bytes}
            for layer, result in zip(job.layers, results, strict=True)
        ],
    }
    return (json.dumps(record, indent=1) + "\n").encode()
