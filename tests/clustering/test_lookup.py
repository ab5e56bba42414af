"""The lookup: T where it is surer, else A."""

import numpy as np

from smoe.clustering.lookup import lookup
from smoe.core.placement import RoutingTables


def tables() -> RoutingTables:
    """One layer, three devices, four ids. After (0, 1) A says 2 at 0.5."""
    chain, sure = np.zeros((1, 4, 4), np.int16), np.zeros((1, 4, 4), np.float16)
    chain[0, 0, 1], sure[0, 0, 1] = 2, 0.5
    return RoutingTables(
        token_device=np.array([[0, 1, 2, 1]], np.int16),
        token_second=np.array([[1, 2, 0, 0]], np.int16),
        token_confidence=np.array([[0.6, 0.5, 0.4, 0.4999]], np.float16),
        chain_device=chain,
        chain_confidence=sure,
    )


def test_the_surer_table_decides_and_equals_go_to_a() -> None:
    history = np.array([0] * 6), np.array([1] * 6)
    found = lookup(tables(), 0, np.array([0, 1, 2, 3, -1, 4]), *history)
    assert found.by_token.tolist() == [True, False, False, False, False, False]
    assert found.device.tolist() == [0, 2, 2, 2, 2, 2]
    assert found.confidence.tolist()[:2] == [np.float16(0.6), np.float16(0.5)]
    # T's device where it is another than A's, T's second where not, the next device where T knows nothing.
    assert found.second.tolist() == [1, 1, 0, 1, 0, 0]
    assert found.device.dtype == found.second.dtype == np.int16
    assert found.confidence.dtype == np.float16


def test_without_the_chain_known_tokens_go_by_t() -> None:
    found = lookup(tables(), 0, np.array([1, 2, -1]), np.zeros(3, int), np.ones(3, int), chain=False)
    assert found.device.tolist() == [1, 2, 2]
    assert found.second.tolist() == [2, 0, 0]


def test_history_that_is_missing_has_an_entry_of_its_own() -> None:
    given = tables()
    given.chain_device[0, 3, 3], given.chain_confidence[0, 3, 3] = 1, 0.9
    assert lookup(given, 0, np.array([0]), np.array([3]), np.array([3])).device.tolist() == [1]
