"""Placements without sense: uneven, with copies or without, for tests in which any will do."""

from collections.abc import Sequence

import numpy as np

from smoe.core.placement import Placement
from tests.collectives.tables import make_tables


def random_placement(
    seed: int,
    *,
    experts: int,
    layers: Sequence[int],
    devices: int,
    fingerprint: str = "f",
    vocab: int | None = None,
) -> Placement:
    """Every device has one expert or more of each layer, and other ones in each; in half of them some are on several
    devices. With tables for `vocab` token ids, if given."""
    rng = np.random.default_rng(seed)
    slots = rng.multinomial(experts - devices, rng.dirichlet(np.ones(devices))) + 1
    copies = rng.integers(0, experts - slots + 1) * int(rng.integers(2))
    rows = []
    for _ in layers:
        owner = rng.permutation(np.repeat(np.arange(devices), slots))
        row: list[int] = []
        for device in range(devices):
            own = np.flatnonzero(owner == device)
            more = rng.choice(np.setdiff1d(np.arange(experts), own), copies[device], replace=False)
            row += rng.permutation(np.concatenate([own, more])).tolist()
        rows.append(row)
    made = Placement(
        fingerprint=fingerprint,
        num_experts=experts,
        layers=tuple(layers),
        slots_of_device=tuple((slots + copies).tolist()),
        slot2expert=np.array(rows, dtype=np.int32),
        tables=None if vocab is None else make_tables(devices, vocab=vocab, layers=len(layers), seed=seed),
    )
    made.validate()
    return made
