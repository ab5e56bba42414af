"""What is asked of a server says where its lengths are from."""

from pathlib import Path

from smoe.workload.demand import Demand


def test_what_is_asked_is_said_on_one_line(tmp_path: Path) -> None:
    assert Demand(num_requests=3).described() == "3 requests of made-up lengths"
    path = tmp_path / "trace.csv"
    rows = ("2023-11-16 18:15:46,1500,500", "2023-11-16 18:15:47,x,44", "nonsense", "2023-11-16 18:15:50,100,9")
    path.write_text("\n".join(("TIMESTAMP,ContextTokens,GeneratedTokens", *rows)) + "\n")
    said = Demand(num_requests=2, trace=str(path), skip_bad_rows=True, max_model_len=1000).described()
    expected = "lengths scaled by 0.5 to 1000 tokens, 2 malformed rows skipped"
    assert said == f"2 requests of trace.csv (its own rate 0.25/s), {expected}"
