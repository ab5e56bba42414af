"""The study of other hardware, with a handful of long prompts."""

import re
from pathlib import Path

from smoe.bench.slo.hardware_study import BOXES, MODELS, SWEPT_LAR, study
from smoe.sim.serving.curve import Load
from smoe.workload.demand import Demand


def test_every_box_model_and_schedule_is_there_and_called_simulated(tmp_path: Path) -> None:
    few = Load(Demand(num_requests=40, input_len=2000, output_len=3))
    figures, samples = study(quick=True, out=tmp_path, load=few)
    assert len(figures) == len(BOXES) * len(MODELS) * 3 + len(SWEPT_LAR)
    assert all("simulated: highest rate" in figure.figure for figure in figures)
    assert all(figure.value and figure.value > 0 for figure in figures)
    for box in BOXES:
        for model in MODELS:
            allreduce, scatter, speculative = (f.value for f in figures if f.figure.startswith(f"{model} on {box}: "))
            assert allreduce < scatter, "a ring fewer"
            assert speculative > allreduce
    by_lar = [figure.value for figure in figures if "by LAR" in figure.figure]
    assert by_lar == sorted(by_lar)
    assert by_lar[-1] > by_lar[0]
    assert re.search(r"^p99_ttft_ms \d+, p99_tpot_ms \d+", str(figures[0].bound))
    assert (tmp_path / "serve-simulated.png").stat().st_size > 20_000
    assert all(point["simulated"] for name, points in samples.items() if name != "assumed" for point in points)
    assert set(samples["assumed"]["locality"]) == set(MODELS)
