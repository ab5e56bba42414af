"""Scores of a table."""

import numpy as np
import pytest

from smoe.clustering.quality import Said, macro_scores, table_quality


def test_scores_by_hand() -> None:
    said, true = np.array([0, 0, 0, 1, 1, 2]), np.array([0, 0, 1, 1, 2, 1])
    precision, recall, f1 = macro_scores(said, true, 4)
    assert precision == pytest.approx((2 / 3 + 1 / 2 + 0) / 3)
    assert recall == pytest.approx((1 + 1 / 3 + 0) / 3)
    assert f1 == pytest.approx((4 / 5 + 2 / 5 + 0) / 3)


def test_quality_by_hand() -> None:
    local = np.array([[2, 0], [1, 1], [0, 2], [2, 0]])
    said = Said(
        device=np.array([0, 0, 0, 1]),
        confidence=np.array([0.95, 0.5, 0.55, 0.12]),
        local=local,
        majority=np.array([0, 0, 1, 0]),
    )
    found = table_quality([said], 2)
    assert (found.decides, found.local, found.any_local) == (1.0, 3 / 8, 0.5)
    # The bin of 0.5 holds 0.5 and 0.55, of which a half and nothing came.
    assert found.calibration_error == pytest.approx((0.05 + abs(1.05 - 0.5) + 0.12) / 4)
    assert found.bins == ((1, 0.12, 0.0), (2, pytest.approx(0.525), 0.25), (1, 0.95, 1.0))


def test_layers_where_a_table_decides_nothing_do_not_count() -> None:
    local = np.array([[1, 0], [0, 1]])
    layer = Said(device=np.array([0, 0]), confidence=np.array([0.5, 0.5]), local=local, majority=np.array([0, 1]))
    nothing, first = (
        Said(
            device=layer.device, confidence=layer.confidence, local=local, majority=layer.majority, decided=np.array(d)
        )
        for d in ([False, False], [True, False])
    )
    found = table_quality([nothing, first], 1)
    assert (found.decides, found.local) == (0.25, 1.0)
    never = table_quality([nothing], 1)
    assert (never.decides, never.local, never.bins) == (0.0, 0.0, ())
