"""Tables without sense, for tests in which any guess will do."""

import numpy as np

from smoe.core.placement import RoutingTables


def make_tables(devices: int, *, vocab: int, layers: int, seed: int = 0, chain: float = 0.5) -> RoutingTables:
    """`chain` is the confidence of the chain everywhere; that of tokens is spread over 0 to 1."""
    rng = np.random.default_rng(seed)
    device = rng.integers(0, devices, (layers, vocab)).astype(np.int16)
    states = (layers, devices + 1, devices + 1)
    return RoutingTables(
        token_device=device,
        token_confidence=rng.random((layers, vocab)).astype(np.float16),
        token_second=((device + 1) % devices).astype(np.int16),
        chain_device=rng.integers(0, devices, states).astype(np.int16),
        chain_confidence=np.full(states, chain, dtype=np.float16),
    )
