"""What the resident bank counts; its arithmetic is the kernels' and is tested there and by the parity of families."""

from pathlib import Path

import torch

from smoe.models.bank import RoutedRows
from tests.offload.support import ExpertFiles


def test_an_access_is_a_distinct_expert_of_a_layer_and_forward(tmp_path: Path) -> None:
    files = ExpertFiles(tmp_path)
    bank = files.resident(torch.float32)
    ids = torch.tensor([[0, 3, 5], [3, 4, 5], [0, 3, 5]], dtype=torch.int32)
    x, weights = torch.ones(3, files.hidden), torch.full((3, 3), 1 / 3)
    rows = RoutedRows(1, x, ids, weights)
    bank.apply(rows, x)
    assert bank.stats().hits == 4  # experts 0, 3, 4 and 5
    bank.apply(rows.part(slice(1)), x[:1])
    assert bank.stats().hits == 7


def test_hits_of_both_banks_are_counted_alike(tmp_path: Path) -> None:
    files = ExpertFiles(tmp_path)
    resident, offloaded = files.resident(torch.float32), files.offloaded(torch.float32, slots_a_layer=7)
    ids = torch.tensor([[0, 3, 5], [3, 4, 5]], dtype=torch.int32)
    x, weights = torch.ones(2, files.hidden), torch.full((2, 3), 1 / 3)
    for _ in range(2):
        for bank in (resident, offloaded):
            bank.apply(RoutedRows(1, x, ids, weights), x)
    stats = offloaded.stats()
    assert resident.stats().hits == stats.hits + stats.misses
    offloaded.close()
