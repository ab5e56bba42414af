from collections.abc import Iterator

import pytest

from smoe.bench.comm.namespaces import Network, why_not

SLOW_MBIT = 200


@pytest.fixture(scope="session")
def can_network() -> None:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture(scope="module")
def network(can_network: None) -> Iterator[Network]:
    """Two hosts behind links of 200 Mbit/s."""
    with Network(2) as made:
        made.shape(SLOW_MBIT)
        yield made
