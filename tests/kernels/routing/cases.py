"""Entries and bins that kernels trip over, each with the reason why it is here."""

import torch
from torch import Tensor


def entries(kind: str) -> tuple[Tensor, int]:
    """(bins [N] i32, number of bins)."""
    random = torch.Generator().manual_seed(3)
    draw = lambda n, low, high: torch.randint(low, high, (n,), generator=random, dtype=torch.int32)  # noqa: E731
    made = {
        "no entry": (draw(0, 0, 1), 4),
        "one entry, one bin": (draw(1, 0, 1), 1),
        "no power of two": (draw(77, 0, 5), 5),
        "skipped and foreign ones": (draw(50, -2, 9), 7),
        "all skipped": (torch.full((19,), -1, dtype=torch.int32), 3),
        "empty bins, first and last too": (draw(40, 2, 4), 9),
        "more bins than entries": (draw(6, 0, 17), 17),
        "2,304 rows of one bin": (torch.full((2304,), 2, dtype=torch.int32), 4),
        "several blocks": (draw(4096 + 33, -1, 3), 3),
    }
    return made[kind]


KINDS = (
    "no entry",
    "one entry, one bin",
    "no power of two",
    "skipped and foreign ones",
    "all skipped",
    "empty bins, first and last too",
    "more bins than entries",
    "2,304 rows of one bin",
    "several blocks",
)
