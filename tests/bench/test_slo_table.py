"""The table of load points on a terminal."""

from dataclasses import replace

import pytest

from smoe.bench.slo.study import Offered
from smoe.bench.slo.table import print_points
from tests.bench.slo_points import point


@pytest.mark.parametrize("columns", [80, 120])
def test_no_column_is_cut(columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    slow = {f"{p}_{name}_ms": 1234.5 for p in ("p50", "p99") for name in ("ttft", "tpot", "tbt_p90")}
    points = [point(offered, 1.0) for offered in (Offered(rate=0.25), Offered(concurrency=32))]
    monkeypatch.setenv("COLUMNS", str(columns))
    print_points([[replace(each, figures={**each.figures, **slow})] for each in points])
    out = capsys.readouterr().out
    assert "…" not in out
    assert all(len(line) <= columns and line.rstrip()[-1] in "┓┃┩│┘" for line in out.splitlines()[1:])
    for word in ("load", "done", "failed", "within", "tok/s", "TTFT", "TPOT", "TBT", "late", "32 in"):
        assert word in out
