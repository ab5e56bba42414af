import numpy as np
import pytest

from smoe.bench.quality.gates import QUANTILES, gate_weights


def test_weights_are_normalised_and_ranked_before_quantiles() -> None:
    found = gate_weights(np.array([[[1.0, 3.0], [6.0, 2.0]]]), threshold=0.5)
    assert np.array(found.quantiles).shape == (2, len(QUANTILES))
    assert np.allclose(found.quantiles[0], 0.75)
    assert np.allclose(found.quantiles[1], 0.25)
    assert (found.reached, found.reached_by_rank) == (0.5, [1.0, 0.0])


def test_quantiles_go_over_layers_and_tokens() -> None:
    heavy = np.linspace(0.5, 0.9, 101)
    weights = np.stack([heavy, 1 - heavy], axis=1).reshape(1, 101, 2)
    found = gate_weights(weights, threshold=0.7)
    assert found.quantiles[0] == pytest.approx([0.52, 0.6, 0.7, 0.8, 0.88])
    assert found.reached_by_rank == pytest.approx([51 / 101, 0.0])
