"""Ranks as processes, over gloo and over sockets: exchanges, and what the others see of a rank that is gone."""

import multiprocessing
from collections.abc import Callable
from multiprocessing.queues import Queue
from typing import Any

import pytest
import torch

from smoe.collectives.rows import RowOrder, gather_rows, reduce_scatter
from smoe.collectives.world import World, WorldPlan, free_port
from smoe.core.errors import CollectiveError
from smoe.core.parallel import Backend

LIMIT_S = 60.0


BACKENDS: tuple[Backend, ...] = ("sockets", "gloo")


def run_processes(
    size: int, body: Callable[[World], Any], backend: Backend, *, hosts: tuple[str, ...] | None = None
) -> list[Any]:
    """body(world) in `size` processes; what each returned, or its error."""
    context = multiprocessing.get_context("spawn")
    answers: Queue[tuple[int, Any]] = context.Queue()
    port = free_port("127.0.0.1")
    plans = [
        WorldPlan(
            rank=rank, hosts=hosts or ("a",) * size, host="127.0.0.1", port=port, timeout_s=LIMIT_S, backend=backend
        )
        for rank in range(size)
    ]
    processes = [context.Process(target=_rank, args=(plan, body, answers)) for plan in plans]
    for process in processes:
        process.start()
    found = dict(answers.get(timeout=2 * LIMIT_S) for _ in range(size))
    for process in processes:
        process.join()
    return [found[rank] for rank in range(size)]


def _rank(plan: WorldPlan, body: Callable[[World], Any], answers: "Queue[tuple[int, Any]]") -> None:
    torch.set_num_threads(1)
    world = World(plan)
    try:
        answers.put((plan.rank, body(world)))
    except Exception as error:
        answers.put((plan.rank, error))
    finally:
        world.close()


def exchange(world: World) -> dict[str, Any]:
    rank, group = world.plan.rank, world.all
    rows = torch.full((3, 2), float(rank), dtype=torch.bfloat16)
    own = torch.arange(rank + 1, dtype=torch.float32).view(-1, 1) + 10 * rank
    sent = group.all_to_all(rows, [2, 1] if rank == 0 else [0, 3], [2, 0] if rank == 0 else [1, 3], "dispatch")
    order = RowOrder(counts=(1, 2), order_T=torch.tensor([2, 0, 1]))
    partial, residual = torch.arange(6.0).view(3, 2) * (rank + 1), torch.ones(3, 2)
    scattered = reduce_scatter(partial, residual, order, group)
    return {
        "sent": sent.float().tolist(),
        "gathered": gather_rows(own, RowOrder(counts=(1, 2)), group).flatten().tolist(),
        "even": group.all_gather(torch.tensor([rank]), "gather").tolist(),
        "summed": group.all_reduce(torch.tensor([rank + 1.0]), "reduce").tolist(),
        "restored": gather_rows(scattered, order, group).tolist(),
        "nothing": group.all_to_all(torch.empty(0, 4), [0, 0], [0, 0], "combine").shape,
        "bytes": {purpose: (t.device, t.host, t.network) for purpose, t in world.ledger.all_traffic().items()},
    }


def cut(world: World) -> dict[str, Any]:
    rank = world.plan.rank
    own = world.stretch(2)
    alone = world.stretch(1)
    return {
        "place": (own.rank, own.ranks, own.size),
        "sum": own.all_reduce(torch.tensor([1.0 + rank]), "reduce").tolist(),
        "rows": own.all_gather(torch.tensor([rank]), "gather").tolist(),
        "alone": (alone.rank, alone.ranks, alone.all_gather(torch.tensor([rank]), "gather").tolist()),
        "all": world.stretch(4) is world.all,
        "everyone": world.all.all_gather(torch.tensor([rank]), "sizes").tolist(),
        "nothing": [exchange(torch.empty(0, 4), "gather").shape for exchange in (own.all_reduce, own.all_gather)],
        "network": world.ledger.all_traffic()["gather"].network,
    }


@pytest.mark.parametrize("backend", BACKENDS)
def test_ranks_cut_into_groups_exchange_within_them_and_over_all(backend: Backend) -> None:
    for rank, found in enumerate(run_processes(4, cut, backend, hosts=("a", "b", "b", "b"))):
        first = rank - rank % 2
        assert found["place"] == (rank % 2, (first, first + 1), 2)
        assert found["sum"] == [2.0 * first + 3]
        assert found["rows"] == [first, first + 1]
        assert found["alone"] == (0, (rank,), [rank])
        assert found["all"]
        assert found["everyone"] == [0, 1, 2, 3]
        assert found["nothing"] == [(0, 4), (0, 4)]  # a group without rows still joins
        assert found["network"] == (8 if first == 0 else 0)  # the ledger knows a group's ranks by their global ones


def lose_the_other(world: World) -> str:
    if world.plan.rank == 1:
        return "left"
    world.all.all_to_all(torch.zeros(2, 1), [1, 1], [1, 1], "dispatch")
    return "went on"


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_processes_exchange_what_threads_would(backend: Backend) -> None:
    first, second = run_processes(2, exchange, backend, hosts=("a", "b"))
    assert (first["sent"], second["sent"]) == ([[0.0, 0.0]] * 2, [[0.0, 0.0]] + [[1.0, 1.0]] * 3)
    for answer in (first, second):
        assert answer["gathered"] == [0.0, 10.0, 11.0]
        assert answer["even"] == [0, 1]
        assert answer["summed"] == [3.0]
        assert answer["restored"] == (torch.arange(6.0).view(3, 2) * 3 + 1).tolist()
        assert answer["nothing"] == (0, 4)
    assert first["bytes"]["dispatch"] == (2 * 4, 0, 1 * 4)
    assert second["bytes"]["dispatch"] == (3 * 4, 0, 0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_rank_that_leaves_is_an_error_of_the_others_and_not_a_hang(backend: Backend) -> None:
    error, left = run_processes(2, lose_the_other, backend)
    assert left == "left"
    assert isinstance(error, CollectiveError), error
    assert str(error).startswith("dispatch over ranks [0, 1]: ")


def test_a_rank_that_nobody_joins_says_where_it_waited() -> None:
    port = free_port("127.0.0.1")
    plan = WorldPlan(rank=1, hosts=("a", "a"), host="127.0.0.1", port=port, timeout_s=0.2)
    with pytest.raises(CollectiveError, match=rf"joining as rank 1 of 2 at 127.0.0.1:{port}: "):
        World(plan)
