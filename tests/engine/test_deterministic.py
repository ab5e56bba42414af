"""The switch that leaves the all-reduce to the backend."""

import pytest
import torch

from smoe.collectives.schedules.protocol import StepRows
from smoe.core.parallel import ParallelConfig
from smoe.core.placement_build import contiguous
from smoe.engine.parallel import make_schedule
from tests.collectives.thread_group import ThreadGroup, run_ranks

VALUES = (1.0, 3e7, -3e7)  # in fp32, 1 + 3e7 forgets the 1


class Backwards(ThreadGroup):
    """A backend that adds from the last rank to the first."""

    def all_reduce(self, values: torch.Tensor, purpose: str) -> torch.Tensor:
        total = torch.zeros_like(values)
        for part in reversed(self.all_gather(values, purpose).view(self.size, *values.shape)):
            total += part
        return total


@pytest.mark.parametrize(("deterministic", "expected"), [(True, 0.0), (False, 1.0)])
def test_sums_are_in_the_order_of_ranks_unless_it_is_left_to_the_backend(deterministic: bool, expected: float) -> None:
    placement = contiguous(fingerprint="0" * 64, num_experts=3, layers=(0,), num_devices=3)
    parallel = ParallelConfig(tensor_parallel_size=3, schedule="allreduce", deterministic=deterministic)

    def body(group: ThreadGroup) -> list[float]:
        group.__class__ = Backwards
        schedule = make_schedule(parallel, group, placement)
        schedule.begin_step(StepRows(token_ids_T=torch.arange(3)))
        own = schedule.reduce(0, torch.full((3, 1), VALUES[group.rank]), torch.zeros(3, 1))
        return schedule.gather(0, own).flatten().tolist()

    assert run_ranks(3, body) == [[expected] * 3] * 3
