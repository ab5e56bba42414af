"""The dispatcher between processes: on connections, a message that nobody reads holds up those behind it."""

import pytest
import torch

from smoe.collectives.chunks import Chunks
from smoe.collectives.dispatch import Dispatcher
from smoe.collectives.slow_dispatch import slow_apply
from smoe.collectives.world import World
from smoe.core.parallel import Backend
from tests.collectives.test_dispatch import make_rank, sums_of
from tests.collectives.test_world import run_processes

CASES = ((0, 0, 0), (1, 0, 2), (5, 7, 3), (0, 40, 9), (600, 1, 300))
"""Rows of each rank."""


def all_cases(world: World) -> list[bool]:
    """Few rows at a time, so that there are more chunks than are sent ahead; messages larger than a socket's buffer."""
    group, right = world.all, list[bool]()
    for to_one in (False, True):
        device_of = torch.full((8,), 1) if to_one else torch.tensor([0, 1, 2, 0, 1, 2, 2, 2])
        for chunks in (Chunks(max_rows=4, overlap_rows=5), Chunks(), Chunks(overlap_rows=None)):
            for rows in CASES if chunks.max_rows > 4 else CASES[:-1]:
                hidden = 4096 if max(rows) > 40 else 6
                x, ids, weights = make_rank(rows[group.rank], 8, 3, seed=group.rank, hidden=hidden)
                device = device_of[ids.long()]
                found = Dispatcher(group, chunks=chunks).apply(x, ids, weights, device, x, sums_of)
                right.append(torch.equal(found, slow_apply(x, ids, weights, device, x, sums_of)))
    return right


@pytest.mark.parametrize("backend", ["sockets", "gloo"])
def test_processes_give_the_bits_of_the_slow_reference(backend: Backend) -> None:
    for right in run_processes(3, all_cases, backend):
        assert isinstance(right, list), right
        assert right == [True] * (2 * (4 + 5 + 5))
