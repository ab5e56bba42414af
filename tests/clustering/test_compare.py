"""Solvers side by side, transfer, pictures."""

from pathlib import Path

import numpy as np
import pytest

from smoe.clustering.compare import Contest, compare
from smoe.clustering.evaluate import evaluate
from smoe.clustering.journey import contiguous
from smoe.clustering.local import held_by
from smoe.clustering.plots import plot_calibration, plot_convergence, plot_front, plot_lar_by_layer
from smoe.clustering.problem import Balance, LayerProblem, LayerSolution
from smoe.clustering.transfer import by_length, transfer
from smoe.core.route_edit import select_sequences, split
from tests.clustering.routes import drawn

SLOTS = (4, 4)


class Dealt:
    """Experts by a rule; the history tells seed and balance, so that tests see them arrive."""

    def __init__(self, name: str, device: tuple[int, ...]) -> None:
        self.name, self.device = name, device

    def solve(self, problem: LayerProblem, balance: Balance, seed: int) -> LayerSolution:
        device = np.array(self.device, np.int16)
        row = problem.local(device).argmax(axis=1).astype(np.int16)
        return LayerSolution(expert_device=device, row_device=row, history=((seed, balance.theta, 1.0),))


def contest() -> Contest:
    fit, heldout = split(drawn(2000), 0.8)
    in_order, in_turn = Dealt("in order", (0, 0, 0, 0, 1, 1, 1, 1)), Dealt("in turn", (0, 1) * 4)
    return Contest(fit=fit, heldout=heldout, solvers=(in_order, in_turn), slots_of_device=SLOTS, seed=5)


ENTRIES = [("in turn", Balance(theta=0.25)), ("in order", Balance(max_load=1.5)), ("in turn", Balance())]


def test_rows_are_those_of_each_solver_and_balance_and_agree_with_the_evaluation() -> None:
    given = contest()
    seen: list[tuple[str, int, int]] = []
    rows = compare(given, ENTRIES, progress=lambda *step: seen.append(step))
    assert [(row.solver, row.balance) for row in rows] == ENTRIES
    assert seen == [("layers", i + 1, 9) for i in range(9)] + [("placements", i + 1, 3) for i in range(3)]
    assert rows[0].history == (((5, 0.25, 1.0),),) * 3
    assert rows[0].lar_token == rows[2].lar_token
    found = evaluate(given.fit, given.heldout, contiguous(3, SLOTS), SLOTS)
    assert rows[1].lar_token == found.lar["both"]
    assert rows[1].lar_chain == found.lar["both and chain"]
    assert rows[1].lar_best == found.lar["oracle"]
    assert rows[1].load_imbalance == found.load_imbalance
    assert rows[1].as_json()["lar_token"] == pytest.approx(found.mean_lar["both"])


def test_order_of_answers_does_not_matter() -> None:
    def backwards(function, items, common):  # type: ignore[no-untyped-def]
        return [(i, function(items[i], common)) for i in reversed(range(len(items)))]

    given = contest()
    ours, theirs = compare(given, ENTRIES), compare(given, ENTRIES, fan_out=backwards)
    assert [{**a.as_json(), "seconds": 0} for a in ours] == [{**b.as_json(), "seconds": 0} for b in theirs]


def test_transfer_judges_every_fit_on_every_kind() -> None:
    kinds = {"a": drawn(1500, seed=1), "b": drawn(1500, seed=2, vocab=30)}
    fits, judges = ({name: split(trace, 0.7)[i] for name, trace in kinds.items()} for i in (0, 1))
    placed: list[int] = []

    def place(trace):  # type: ignore[no-untyped-def]
        placed.append(trace.num_tokens)
        return contiguous(3, SLOTS)

    found = transfer(fits, judges, place)
    assert [(each.fit, each.judged) for each in found] == [("a", "a"), ("a", "b"), ("b", "a"), ("b", "b")]
    assert placed == [fits["a"].num_tokens, fits["b"].num_tokens]
    assert found[1].unseen > 0.2
    assert found[0].unseen == 0.0


def test_more_text_is_fitted_in_the_same_order() -> None:
    fit, heldout = split(drawn(3000), 0.7)
    whole = by_length(fit, heldout, [0.1, 0.5, 1.0], lambda trace: contiguous(3, SLOTS))
    assert [each.fit for each in whole] == ["10%", "50%", "100%"]
    assert whole[0].fit_tokens < whole[1].fit_tokens < whole[2].fit_tokens == fit.num_tokens
    assert whole[0].unseen >= whole[2].unseen
    again = by_length(select_sequences(fit, range(fit.num_sequences)), heldout, [0.1], lambda t: contiguous(3, SLOTS))
    assert again == whole[:1]


def test_pictures_are_drawn(tmp_path: Path) -> None:
    given = contest()
    rows = compare(given, ENTRIES)
    found = evaluate(given.fit, given.heldout, held_by(rows[0].expert_device, 2), SLOTS)
    made = [
        plot_lar_by_layer(tmp_path / "new" / "lar.png", found.lar, given.fit.layers, "lar"),
        plot_front(tmp_path / "front.png", rows, "front"),
        plot_convergence(tmp_path / "convergence.png", {"a": rows[0].history, "none": [(), ()]}, "convergence"),
        plot_calibration(tmp_path / "calibration.png", found.tables, "calibration"),
    ]
    for path in made:
        assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
