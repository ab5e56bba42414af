"""Nearest seen token by cosine, in blocks."""

import numpy as np
import pytest

from smoe.clustering.neighbours import nearest_seen


@pytest.mark.parametrize("block", [1, 7, 64, 2048])
def test_equals_the_whole_product_for_any_block(block: int) -> None:
    chance = np.random.default_rng(3)
    embedding = chance.normal(size=(90, 6))
    seen = np.sort(chance.choice(90, 31, replace=False))
    unit = embedding / np.linalg.norm(embedding, axis=1, keepdims=True)
    expected = seen[(unit @ unit[seen].T).argmax(axis=1)]
    assert nearest_seen(embedding, seen, block=block).tolist() == expected.tolist()


def test_length_does_not_count_and_seen_ids_stay() -> None:
    embedding = np.array([[1.0, 0.0], [0.0, 0.001], [0.3, 100.0], [9.0, 1.0], [0.0, 0.0]])
    assert nearest_seen(embedding, np.array([0, 1])).tolist() == [0, 1, 1, 0, 0]


def test_ties_go_to_the_lowest_id_over_blocks() -> None:
    assert nearest_seen(np.ones((5, 2)), np.array([1, 2, 4]), block=1).tolist() == [1, 1, 2, 1, 4]
