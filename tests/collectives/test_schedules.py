"""The schedules over ranks as threads: equal results, rows where the tables say, bytes by the formulas."""

import numpy as np
import pytest
import torch

from smoe.collectives.schedules.plain import AllReduce, Scatter
from smoe.collectives.schedules.protocol import StepRows
from smoe.collectives.schedules.speculative import Speculative
from tests.collectives.tables import make_tables
from tests.collectives.thread_group import run_ranks

VOCAB, HIDDEN, LAYERS = 50, 8, (1, 2, 4)


def forward(group, schedule, rows: int) -> torch.Tensor:
    """Layers that do something to each row by itself, and route it by its values."""
    generator = torch.Generator().manual_seed(7)
    tokens = torch.randint(VOCAB, (rows,), generator=generator)
    x = torch.randn(rows, HIDDEN, generator=generator)
    schedule.begin_step(StepRows(token_ids_T=tokens))
    for layer in range(5):
        partial = (x * (group.rank + 1)).sin()
        own = schedule.reduce(layer, partial, x)
        if layer in LAYERS:
            schedule.note_devices(layer, (own[:, :3].abs() * 100).long() % group.size)
        x = schedule.gather(layer, own + own.cos())
    return x


@pytest.mark.parametrize("rows", [0, 1, 3, 5, 7, 64, 257])  # none, fewer than ranks, no multiple of them, many
@pytest.mark.parametrize("size", [1, 2, 4])
def test_all_schedules_give_the_same_bits(rows: int, size: int) -> None:
    tables = make_tables(size, vocab=VOCAB, layers=len(LAYERS))
    makes = {
        "allreduce": AllReduce,
        "scatter": Scatter,
        "equal": lambda group: Speculative(group, tables, LAYERS),
        "ragged": lambda group: Speculative(group, tables, LAYERS, capacity_factor=1.5),
        "to one": lambda group: Speculative(group, tables, LAYERS, capacity_factor=float(size)),
        "no chain": lambda group: Speculative(group, tables, LAYERS, chain=False),
    }
    results = {
        name: run_ranks(size, lambda group, make=make: forward(group, make(group), rows))
        for name, make in makes.items()
    }
    expected = results["scatter"][0]
    for name, answers in results.items():
        for answer in answers:
            assert torch.equal(answer, expected), name


def test_rows_go_where_the_surer_table_says_as_far_as_there_is_room() -> None:
    size, rows = 3, 12
    tables = make_tables(size, vocab=VOCAB, layers=len(LAYERS), chain=0.0)
    tokens = torch.arange(rows)

    def body(group, factor):
        schedule = Speculative(group, tables, LAYERS, capacity_factor=factor, chain=False)
        schedule.begin_step(StepRows(token_ids_T=tokens))
        ids = tokens.float().view(-1, 1) / size
        return schedule.reduce(1, ids, torch.zeros(rows, 1)).flatten().round().int().tolist()

    wished = tables.token_device[0, :rows]
    free = run_ranks(size, lambda group: body(group, 3.0))
    assert free == [np.flatnonzero(wished == rank).tolist() for rank in range(size)]
    even = run_ranks(size, lambda group: body(group, 1.0))
    assert [len(own) for own in even] == [4, 4, 4]
    for rank, own in enumerate(even):
        sure = sorted(np.flatnonzero(wished == rank), key=lambda row: -tables.token_confidence[0, row])[:4]
        assert set(sure) <= set(own)


def test_the_history_of_two_layers_decides_where_it_is_surer() -> None:
    """The chain sends each row to the rank that follows, cyclically, the one before: seen at the third MoE layer."""
    size, rows = 3, 9
    tables = make_tables(size, vocab=VOCAB, layers=len(LAYERS))
    for before in range(size + 1):
        tables.chain_device[:, :, before] = (before + 1) % size
    tables.chain_confidence[:] = 1.0
    tables.token_confidence[:] = 0.0

    def body(group):
        schedule = Speculative(group, tables, LAYERS, capacity_factor=float(size))
        schedule.begin_step(StepRows(token_ids_T=torch.arange(rows)))
        x, seen = torch.arange(float(rows)).view(-1, 1), []
        for layer in LAYERS:
            own = schedule.reduce(layer, torch.zeros_like(x), x)
            seen.append(own.flatten().int().tolist())
            # Row r's experts are on rank r % 3 in every layer, with a minority elsewhere.
            device = torch.stack([own.flatten().long() % size] * 2 + [torch.zeros(len(own), dtype=torch.int64)], dim=1)
            schedule.note_devices(layer, device)
            x = schedule.gather(layer, own)
        return seen

    for rank, seen in enumerate(run_ranks(size, body)):
        assert seen[0] == (list(range(rows)) if rank == (size + 1) % size else [])
        assert seen[1] == seen[2] == [row for row in range(rows) if (row % size + 1) % size == rank]


def test_bytes_of_each_schedule_are_those_of_the_formulas() -> None:
    """u = (G - 1) / G * T * h a rank for a reduce-scatter or an all-gather; allreduce moves one u more."""
    size, rows = 4, 64
    u = (size - 1) * rows * HIDDEN * 4 // size

    def traffic(make):
        def body(group):
            forward(group, make(group), rows)
            return {name: t.wire for name, t in group.ledger.all_traffic().items()}

        return run_ranks(size, body)

    layers = 5
    for own in traffic(AllReduce):
        assert own == {"reduce": 2 * u * layers, "gather": u * layers}
    for own in traffic(Scatter):
        assert own == {"reduce": u * layers, "gather": u * layers}
    tables = make_tables(size, vocab=VOCAB, layers=len(LAYERS))
    ragged = traffic(lambda group: Speculative(group, tables, LAYERS, capacity_factor=2.0, chain=False))
    assert sum(own["reduce"] for own in ragged) == size * u * layers
    assert sum(own["gather"] for own in ragged) == size * u * layers
    chained = traffic(lambda group: Speculative(group, tables, LAYERS))
    assert sum(own["gather"] for own in chained) == size * u * layers + (size - 1) * rows * 4 * len(LAYERS)
