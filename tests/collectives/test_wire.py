"""Formulas of a layer's exchanges, by hand. That they are what the ledger counts: tests/bench/test_comm_formula.py."""

import subprocess
import sys

import pytest
import torch

from smoe.collectives.message import Layout
from smoe.collectives.wire import exchange_s, row_bytes, wire_bytes

SIZES = {"ranks": 4, "rows": 10, "hidden": 8, "dtype_bytes": 2, "choices": 3, "sent_rows": 5, "messages": 4}


def test_bytes_by_hand() -> None:
    ring = 3 * 10 * 16  # each of 10 rows to 3 other ranks
    passes = {"dispatch": 5 * (16 + 3 * 6) + 16 * 3 * 4, "combine": 5 * 16}
    assert wire_bytes("allreduce", **SIZES) == {"reduce": 2 * ring, "gather": ring, **passes}
    assert wire_bytes("scatter", **SIZES) == {"reduce": ring, "gather": ring, **passes}
    assert wire_bytes("speculative", **SIZES) == {"reduce": ring, "gather": ring + 3 * 10 * 2, **passes}


def test_a_row_weighs_what_a_message_takes_for_it() -> None:
    layout = Layout(8, torch.bfloat16, 3)
    assert layout.nbytes(7) - layout.nbytes(6) == row_bytes(8, 2, 3)


def test_seconds_by_hand() -> None:
    wire = {"reduce": 800.0, "dispatch": 400.0, "combine": 200.0, "gather": 600.0}
    spread, gather, reduce = (lambda n: 1 + n), (lambda n: 10 + n), (lambda n: 100 + n)
    scatter = exchange_s("scatter", wire, 4, spread, gather, busiest=1.5)
    assert scatter == {"reduce": 201, "dispatch": 151, "combine": 76, "gather": 160}
    assert exchange_s("allreduce", wire, 4, spread, gather)["reduce"] == (1 + 100) + (10 + 100)
    assert exchange_s("allreduce", wire, 4, spread, gather, reduce=reduce)["reduce"] == (100 + 100) + (10 + 100)


@pytest.mark.parametrize("module", ["smoe.collectives.wire", "smoe.sim.serving.devices", "smoe.sim.serving.serve"])
def test_loads_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print([m for m in ('torch', 'ray', 'transformers', 'triton') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
