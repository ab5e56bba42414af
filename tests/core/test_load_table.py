from pathlib import Path

import numpy as np
import pytest

from smoe.core.errors import ConfigError, TraceError
from smoe.core.load_table import read_load_table

HEADER = "layer_id,expert_id,count\n"


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_lines_in_any_order(tmp_path: Path) -> None:
    table = read_load_table(write(tmp_path / "l.csv", HEADER + "7,1,5\n3,0,2\n7,0,0\n\n3,1,9\n"))
    assert (table.layers, table.load.tolist(), table.num_experts) == ((3, 7), [[2, 9], [0, 5]], 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"line 1: '' \(the columns layer_id,expert_id,count\)"),
        ("layer,expert,count\n", r"line 1: 'layer,expert,count'"),
        (HEADER, "no line of counts"),
        (HEADER + "0,0,1\n0,x,1\n", r"line 3: '0,x,1' \(three integers\)"),
        (HEADER + "0,0\n", r"line 2: '0,0' \(three integers\)"),
        (HEADER + "0,0,-1\n", r"line 2: '0,0,-1' \(none below 0\)"),
        (HEADER + "0,0,1\n0,0,2\n", r"line 3: layer 0, expert 0 \(a second time\)"),
        (HEADER + "0,0,1\n0,1,1\n1,1,4\n", r"layer 1 has no line for expert 0"),
    ],
)
def test_broken_tables_name_line_and_value(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(TraceError, match=rf"l\.csv: {message}"):
        read_load_table(write(tmp_path / "l.csv", text))
    with pytest.raises(TraceError, match="none"):
        read_load_table(tmp_path / "none.csv")
    with pytest.raises(ConfigError, match="load_name: 'x' "):
        read_load_table(tmp_path / "l.csv", "x")


def test_a_table_of_several_is_chosen_by_name(tmp_path: Path) -> None:
    path = tmp_path / "l.npz"
    np.savez(path, m__load_a=np.array([[1, 2]]), m__load_b=np.array([[3, -4]]), m__cross_a=np.zeros((2, 2)))
    assert read_load_table(path, "m__load_a").load.tolist() == [[1, 2]]
    with pytest.raises(ConfigError, match=r"load_name: None \(one of m__load_a, m__load_b\)"):
        read_load_table(path)
    with pytest.raises(TraceError, match=r"m__load_b\[0, 1\]: -4 \(0 or above\)"):
        read_load_table(path, "m__load_b")
