import numpy as np
import pytest

from smoe.offload.policies.gate import GateLookahead
from tests.offload.policies.support import routing

SEEN = routing(0, [0, 1])


def plan(*rows, **options):
    options = {"top_k": 2} | options
    keys = GateLookahead(**options).plan(SEEN, 1, np.log(np.array(rows)).astype(np.float16))
    assert all(layer == 1 for layer, _ in keys)
    return [expert for _, expert in keys]


ROW = [0.05, 0.4, 0.2, 0.25, 0.1]


def test_top_k_has_one_width():
    assert plan(ROW, width=2) == [1, 3]
    assert plan(ROW, width=99) == [1, 3, 2, 4, 0]


def test_a_threshold_makes_the_width_vary():
    # The router would choose 1 and 3. Scores over 3's: 0.2, 1.6, 0.8, 1, 0.4.
    assert plan(ROW, width=5, threshold=0.6) == [1, 3, 2]
    assert plan(ROW, width=5, threshold=0.3) == [1, 3, 2, 4]
    assert plan(ROW, width=5, threshold=1.0) == [1, 3]
    assert plan([0.6, 0.3, 0.04, 0.03, 0.03], width=5, threshold=0.6) == [0, 1]
    assert plan([0.2] * 5, width=5, threshold=0.9) == [0, 1, 2, 3, 4]
    assert plan(ROW, width=5, threshold=0.6, top_k=1) == [1, 3]  # over 1's: 0.125, 1, 0.5, 0.625, 0.25


def test_the_width_is_a_cap_on_the_threshold():
    assert plan(ROW, width=3, threshold=0.2) == [1, 3, 2]


def test_rows_join_with_their_best_score():
    # Row 0 names 1 (1.6) and 3 (1.0), row 1 names 4 (4/3) and 3 (1.0).
    other = [0.1, 0.1, 0.1, 0.3, 0.4]
    assert plan(ROW, other, width=2) == [1, 4, 3]
    assert plan(ROW, other, width=1) == [1, 4]
    # and down to 0.6 row 0 also 2 (0.8)
    assert plan(ROW, other, width=3, threshold=0.6) == [1, 4, 3, 2]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_rows_that_are_not_finite_name_nobody(bad):
    rows = np.log(np.array([ROW, ROW])).astype(np.float16)
    rows[1, 0] = bad
    gate = GateLookahead(top_k=2, width=2)
    assert gate.plan(SEEN, 1, rows) == [(1, 1), (1, 3)]
    assert list(gate.plan(SEEN, 1, rows[1:])) == []


def test_without_logits_there_is_no_plan():
    assert list(GateLookahead(top_k=2, width=2).plan(SEEN, 0, None)) == []


def test_large_logits_do_not_overflow():
    logits = np.array([[60000.0, -60000.0, 59000.0]], dtype=np.float16)
    with np.errstate(over="raise", invalid="raise"):
        assert GateLookahead(top_k=2, width=2).plan(SEEN, 1, logits) == [(1, 0), (1, 2)]
