"""What times the expert kernels: its cases run (here as twins), and its bytes are those of the tensors."""

import pytest
import torch

from smoe.bench.gpu import experts

CPU = torch.device("cpu")
SMALL = experts.Geometry(hidden=96, ffn=40, experts=5, top_k=2)


def test_every_case_runs_and_agrees_with_its_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experts, "DENSE_ROWS", (1, 7))
    monkeypatch.setattr(experts, "INT4_ROWS", (3,))
    names = []
    for case in experts.cases(CPU, SMALL):
        made, wanted = case.kernel(), case.twin()
        assert isinstance(made, torch.Tensor)
        assert isinstance(wanted, torch.Tensor)
        assert float((made - wanted).abs().max()) < 0.1 * float(
            wanted.abs().max()
        )  # the CPU rounds 4-bit rows to 8 bits
        assert case.nbytes > 0
        assert case.flops > 0
        names.append(case.name)
    assert names == ["bf16 experts, 1 rows", "bf16 experts, 7 rows", "4-bit experts, 3 rows"]


def test_experts_of_a_row_differ_and_routes_do() -> None:
    routes = experts.routes(9, SMALL, CPU)
    assert len(routes) == experts.NUM_ROUTES
    assert all(len(set(row)) == SMALL.top_k for ids in routes for row in ids.tolist())
    assert not torch.equal(routes[0], routes[1])


def test_bytes_of_an_expert() -> None:
    dense, packed = (experts.table_of(SMALL, CPU, torch.bfloat16, size, "silu") for size in (None, 64))
    assert experts.expert_bytes(dense) == 2 * 3 * 96 * 40
    # Codes of 96 columns, and of 40 in whole blocks of 32; two scales a row, and one.
    assert experts.expert_bytes(packed) == 2 * 40 * (48 + 2 * 2) + 96 * (32 + 2)


def test_correctness_figures_tell_right_from_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = list(experts.correctness(CPU, SMALL))
    assert len(figures) == 9
    assert all(figure.met for figure in figures if "4 bits" not in figure.figure or "float32" in figure.figure)
    monkeypatch.setattr(experts, "moe_pairs", lambda x, ids, table, out: out.fill_(1.0))
    assert not any(figure.met for figure in experts.correctness(CPU, SMALL))
