"""What a rank holds and runs, put together as a shard does, for groups of ranks; experts uneven and with replicas."""

import numpy as np
import pytest
import torch

from smoe.collectives.group import Group, SoloGroup
from smoe.core.parallel import ParallelConfig, ScheduleName
from smoe.core.placement import Placement
from smoe.core.placement_build import from_expert_device, with_replicas
from smoe.engine.parallel import load_part, make_schedule
from smoe.models.loading import Checkpoint, open_checkpoint
from tests.collectives.tables import make_tables
from tests.collectives.thread_group import run_groups
from tests.models.sharded import whole_decoder
from tests.models.test_data_parallel import TOLERANCE, random_steps, run_steps


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return open_checkpoint("builtin")


def uneven(checkpoint: Checkpoint, devices: int, copies: int) -> Placement:
    """The last device has half of the experts, the others share the rest; `copies` of its experts are on all others."""
    spec = checkpoint.spec
    experts, layers = spec.moe(spec.moe_layers[0]).router.num_experts, spec.moe_layers
    slots = [experts // 2 // (devices - 1)] * (devices - 1)
    slots.append(experts - sum(slots))
    owner = np.repeat(np.arange(devices), slots)
    rng = np.random.default_rng(devices)
    device = np.stack([rng.permutation(owner) for _ in layers]).astype(np.int16)
    tables = make_tables(devices, vocab=80, layers=len(layers))
    made = from_expert_device(device, slots, fingerprint=checkpoint.fingerprint, layers=layers, tables=tables)
    if not copies:
        return made
    of_last = [np.flatnonzero(row == devices - 1)[:copies].tolist() for row in device]
    return with_replicas(made, [[held] * (devices - 1) + [[]] for held in of_last])


@pytest.mark.parametrize(
    ("groups", "size", "schedule", "copies"),
    [(2, 1, "scatter", 0), (3, 1, "scatter", 3), (2, 2, "scatter", 0), (2, 2, "speculative", 3)],
)
def test_parts_of_all_ranks_compute_the_model(
    checkpoint: Checkpoint, groups: int, size: int, schedule: ScheduleName, copies: int
) -> None:
    torch.set_num_threads(1)
    steps = random_steps(4, seed=7)
    members = [tuple(s for s in range(4) if s % groups == group) for group in range(groups)]
    expected = run_steps(whole_decoder(checkpoint, torch.float32), steps, own=(0, 1, 2, 3))
    placement = uneven(checkpoint, groups * size, copies)
    held = [int(placement.on_device[0, :, device].sum()) for device in range(groups * size)]
    parallel = ParallelConfig(
        tensor_parallel_size=size, data_parallel_size=groups, schedule=schedule, placement="unread"
    )

    def body(everyone: Group, own: Group) -> list[dict[int, torch.Tensor]]:
        tensor = SoloGroup(everyone.ledger, everyone.rank) if size == 1 else own
        part = load_part(checkpoint, everyone, placement, torch.float32, tensor)
        assert all(table.num_slots == held[everyone.rank] for table in part.local.held.tables.values())
        decoder, _ = part.decoder(make_schedule(parallel, tensor, placement))
        return run_steps(decoder, steps, own=members[everyone.rank // size])

    found = run_groups(groups, size, body)[::size]
    for number, wanted in enumerate(expected):
        for sequence, logits in wanted.items():
            ours = found[sequence % groups][number][sequence]
            assert (ours - logits).abs().max() < TOLERANCE, (number, sequence)
