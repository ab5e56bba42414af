import numpy as np
import pytest

from smoe.clustering.batch_value import BatchValue
from smoe.clustering.sampling import align, draw, entropy, even_chance, frequencies
from smoe.clustering.sketch import sketch
from smoe.clustering.tokens import assign_rows
from smoe.clustering.units import in_order, units_of
from tests.clustering.layers import free_value, random_problem


def test_every_sample_is_legal() -> None:
    problem = random_problem(0, slots=(6, 4, 2))
    units = units_of(problem)
    for placement in draw(units, even_chance(units), 200, None, np.random.default_rng(0)):
        assert np.bincount(placement).tolist() == [6, 4, 2]


def test_samples_follow_their_chances() -> None:
    units = units_of(random_problem(0))
    chance = np.eye(3)[in_order(units)]
    assert (draw(units, chance, 20, None, np.random.default_rng(0)) == in_order(units)).all()


def test_samples_avoid_passing_the_limit() -> None:
    units = units_of(random_problem(0))
    limit = 1.15 * units.load.sum() / 3
    placed = draw(units, even_chance(units), 200, limit, np.random.default_rng(0))
    kept = [np.bincount(placement, units.load).max() <= limit for placement in placed]
    free = draw(units, even_chance(units), 200, None, np.random.default_rng(0))
    assert np.mean(kept) > np.mean([np.bincount(placement, units.load).max() <= limit for placement in free])


def test_alignment_undoes_a_renaming() -> None:
    units = units_of(random_problem(0))
    like = in_order(units)
    renamed = np.array([2, 0, 1])[like]
    assert align(units, renamed[None], like)[0].tolist() == like.tolist()


def test_alignment_renames_only_devices_of_equal_slots() -> None:
    units = units_of(random_problem(0, slots=(5, 5, 2)))
    rng = np.random.default_rng(0)
    for placement in align(units, draw(units, even_chance(units), 30, None, rng), in_order(units)):
        assert np.bincount(placement).tolist() == [5, 5, 2]


def test_frequencies_and_entropy() -> None:
    units = units_of(random_problem(0))
    placed = np.stack([in_order(units)] * 4)
    assert entropy(frequencies(units, placed)) == 0.0
    assert entropy(even_chance(units)) == pytest.approx(np.log(3))


@pytest.mark.parametrize("block", [1, 1 << 26])
def test_batch_values_are_those_of_one_at_a_time(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smoe.clustering.batch_value.BLOCK", block)
    problem = random_problem(1)
    units = units_of(problem)
    placed = draw(units, even_chance(units), 9, None, np.random.default_rng(1))
    assert BatchValue(units, 0.0, None)(placed).tolist() == [free_value(problem, device) for device in placed]


def test_batch_values_charge_load_above_the_limit() -> None:
    problem = random_problem(1)
    units = units_of(problem)
    placed = in_order(units)[None]
    load = np.bincount(placed[0], units.load)
    limit = float(load.max()) - 7.0
    above = np.maximum(load - limit, 0).sum()
    assert BatchValue(units, 0.0, limit)(placed)[0] == free_value(problem, placed[0]) - above


def test_batch_values_bound_the_balanced_assignment() -> None:
    problem = random_problem(1, rows=400)
    units = units_of(problem)
    fine = 0.8
    placed = draw(units, even_chance(units), 6, None, np.random.default_rng(1))
    for device, bound in zip(placed, BatchValue(units, fine, None)(placed), strict=True):
        local = problem.local(device)
        rows = assign_rows(local, problem.mass, fine)
        tokens = np.bincount(rows, problem.mass, 3)
        reached = local[np.arange(len(rows)), rows].sum() - fine * np.abs(tokens - tokens.mean()).sum()
        assert reached <= bound + 1e-6
        assert reached >= 0.97 * bound


def test_a_sketch_stands_for_all_rows() -> None:
    problem = random_problem(0, rows=3000)
    units = units_of(problem)
    small = sketch(units, 600, np.random.default_rng(0))
    assert small.counts.shape[0] <= 650
    assert small.load.tolist() == units.load.tolist()
    assert small.counts.sum() == pytest.approx(units.counts.sum(), rel=0.05)
    assert small.mass.sum() == pytest.approx(units.mass.sum(), rel=0.1)
    assert (small.counts.data == np.rint(small.counts.data)).all()
    device = in_order(units)
    whole, part = (BatchValue(u, 0.0, None)(device[None])[0] for u in (units, small))
    assert part == pytest.approx(whole, rel=0.05)


def test_few_rows_are_their_own_sketch() -> None:
    units = units_of(random_problem(0))
    assert sketch(units, 40, np.random.default_rng(0)) is units
