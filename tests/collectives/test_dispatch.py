"""Rows to their experts and back, over ranks as threads."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from smoe.collectives.chunks import AHEAD, Chunks
from smoe.collectives.dispatch import Dispatched, Dispatcher
from smoe.collectives.group import SoloGroup
from smoe.collectives.message import Layout
from smoe.collectives.slow_dispatch import slow_apply
from smoe.collectives.wire import HEAD_BYTES
from tests.collectives.thread_group import ThreadGroup, run_ranks

HIDDEN = 6
Rows = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def sums_of(rows: Dispatched) -> torch.Tensor:
    """In ascending expert id, as every bank adds; something that tells experts and rows apart."""
    x_ND = rows.x_ND.float()
    out = torch.zeros_like(x_ND)
    for row in range(len(x_ND)):
        for expert, weight in sorted(zip(rows.ids_NK[row].tolist(), rows.weights_NK[row], strict=True)):
            if expert >= 0:
                out[row] += weight * (x_ND[row] * (expert + 1) + expert)
    return out.to(rows.x_ND.dtype)


def make_rank(
    rows: int, experts: int, choices: int, seed: int, dtype: torch.dtype = torch.float32, hidden: int = HIDDEN
) -> Rows:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.stack([torch.randperm(experts, generator=generator)[:choices] for _ in range(rows)] or [torch.empty(0)])
    ids = ids.view(rows, choices).to(torch.int32)
    x = torch.randn(rows, hidden, generator=generator).to(dtype)
    return x, ids, torch.rand(rows, choices, generator=generator)


def both_ways(
    rows_of: list[Rows], device_of: torch.Tensor, *, messages: bool = True, **options: Any
) -> list[tuple[torch.Tensor, torch.Tensor, list[Dispatched], ThreadGroup]]:
    """By rank: what the dispatcher and what the slow reference gives, what was computed there, and the group."""
    dedup = options.get("dedup", True)

    def body(group: ThreadGroup) -> tuple[torch.Tensor, torch.Tensor, list[Dispatched], ThreadGroup]:
        x, ids, weights = rows_of[group.rank]
        device, residual, seen = device_of[ids.long()], x.flip(0), list[Dispatched]()

        def compute(sent: Dispatched) -> torch.Tensor:
            # Copies: what is given may lie in rooms that the next messages go into.
            seen.append(Dispatched(x_ND=sent.x_ND.clone(), ids_NK=sent.ids_NK, weights_NK=sent.weights_NK.clone()))
            return sums_of(sent)

        found = Dispatcher(group, **options).apply(x, ids, weights, device, residual, compute)
        slow = slow_apply(x, ids, weights, device, residual, sums_of, dedup=dedup)
        return found, slow, seen, group

    return run_ranks(len(rows_of), body, messages=messages)


@settings(deadline=None, max_examples=60)
@given(
    rows=st.lists(st.integers(0, 5), min_size=1, max_size=4),
    choices=st.integers(1, 4),
    seed=st.integers(0, 999),
    dedup=st.booleans(),
    to_one=st.booleans(),
    messages=st.booleans(),
    chunks=st.sampled_from([Chunks(), Chunks(overlap_rows=0), Chunks(2, 2), Chunks(1, None)]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    hidden=st.sampled_from([5, 6]),
)
def test_every_way_gives_the_bits_of_the_slow_reference(
    rows: list[int],
    choices: int,
    seed: int,
    dedup: bool,
    to_one: bool,
    messages: bool,
    chunks: Chunks,
    dtype: torch.dtype,
    hidden: int,
) -> None:
    """Ranks without rows, all rows to one rank, any spread of experts; odd sizes, whose parts lie askew."""
    size, experts = len(rows), 8
    device_of = torch.zeros(experts, dtype=torch.int64) if to_one else torch.arange(experts) * size // experts
    made = [make_rank(count, experts, choices, seed + rank, dtype, hidden) for rank, count in enumerate(rows)]
    answers = both_ways(made, device_of, messages=messages, dedup=dedup, chunks=chunks)
    sends = 0
    for rank, (found, slow, seen, _) in enumerate(answers):
        assert torch.equal(found, slow)
        for part in seen:
            ids = part.ids_NK[part.ids_NK >= 0].long()
            assert (device_of[ids] == rank).all()
            sends += len(part.x_ND)
    needed = [device_of[row].unique() if dedup else row for _, ids, _ in made for row in ids.long()]
    assert sends == sum(map(len, needed))


@pytest.mark.parametrize("messages", [True, False])
def test_many_rows_for_one_expert_and_bytes_are_a_formula_of_the_rows_sent(messages: bool) -> None:
    rows, size = 2304, 3
    made = [
        (torch.randn(rows, HIDDEN), torch.full((rows, 1), 7, dtype=torch.int32), torch.ones(rows, 1))
        for _ in range(size)
    ]
    answers = both_ways(made, torch.full((8,), 2), messages=messages)
    assert [sum(len(part.x_ND) for part in seen) for _, _, seen, _ in answers] == [0, 0, size * rows]
    row_bytes = Layout(HIDDEN, torch.float32, 1).row_bytes
    for rank, (found, _, _, group) in enumerate(answers):
        x = made[rank][0]
        torch.testing.assert_close(found, x.flip(0) + x * 8 + 7)
        traffic = group.ledger.all_traffic()
        told = HEAD_BYTES * (size - 1) * Chunks().count(rows)
        assert traffic["dispatch"].wire == (0 if rank == 2 else rows) * row_bytes + (told if messages else 0)
        assert traffic["combine"].wire == (2 * rows * HIDDEN * 4 if rank == 2 else 0)
        assert group.ledger.traffic("sizes").wire == (0 if messages else told)


def test_rows_that_stay_are_neither_packed_nor_sent() -> None:
    made = [make_rank(4, 8, 3, seed) for seed in range(2)]

    def body(group: ThreadGroup) -> tuple[list[Dispatched], dict[str, int]]:
        x, ids, weights = made[group.rank]
        seen: list[Dispatched] = []
        here = torch.full((4, 3), group.rank)
        Dispatcher(group).apply(x, ids, weights, here, x, lambda sent: seen.append(sent) or sums_of(sent))
        return seen, {name: each.wire + each.device for name, each in group.ledger.all_traffic().items()}

    for rank, (seen, nbytes) in enumerate(run_ranks(2, body)):
        (own,) = seen
        assert torch.equal(own.x_ND, made[rank][0])
        assert nbytes == {"dispatch": HEAD_BYTES, "combine": 0}


def test_bf16_rows_keep_their_bits_on_the_way() -> None:
    x, _, _ = make_rank(5, 8, 1, 0, torch.bfloat16)
    made = [(x, torch.arange(5, dtype=torch.int32).view(5, 1), torch.ones(5, 1))] * 2
    for rank, (_, _, seen, _) in enumerate(both_ways(made, torch.arange(8) % 2, chunks=Chunks(overlap_rows=None))):
        mine = [i for i in range(5) if i % 2 == rank]
        (joined,) = seen
        assert joined.ids_NK.flatten().tolist() == mine * 2
        assert torch.equal(joined.x_ND, x[mine * 2])


def test_the_sum_does_not_depend_on_who_works_on_a_row() -> None:
    """Rows moved to another rank give the same bits: the same partial sums, added in the same order."""
    x, ids, weights = make_rank(12, 8, 4, seed=3)
    device_of = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])

    def work(split: list[list[int]]) -> torch.Tensor:
        out = torch.empty_like(x)
        body = _apply_of(lambda rank: (x[split[rank]], ids[split[rank]], weights[split[rank]]), device_of)
        for mine, rows in zip(split, run_ranks(3, body), strict=True):
            out[mine] = rows
        return out

    plain = work([[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]])
    moved = work([[11, 5, 0], [1, 2, 3, 4, 6, 7, 8], [10, 9]])
    assert torch.equal(plain, moved)


def _apply_of(
    rows_of: Callable[[int], Rows], device_of: torch.Tensor, **options: Any
) -> Callable[[ThreadGroup], torch.Tensor]:
    def body(group: ThreadGroup) -> torch.Tensor:
        x, ids, weights = rows_of(group.rank)
        return Dispatcher(group, **options).apply(x, ids, weights, device_of[ids.long()], x, sums_of)

    return body


@pytest.mark.parametrize("messages", [True, False])
@pytest.mark.parametrize("rows", [(0, 7, 3), (5, 5, 5), (1, 0, 0), (9, 2, 4)])
def test_few_rows_at_a_time_give_the_same_sums_and_never_more_than_fit(rows: tuple[int, ...], messages: bool) -> None:
    """Ranks need unequal numbers of rounds, and all take part until the last is done."""
    made = [make_rank(count, 8, 4, seed=rank) for rank, count in enumerate(rows)]
    device_of = torch.tensor([0, 1, 2, 0, 1, 2, 2, 2])
    for found, slow, seen, group in both_ways(made, device_of, messages=messages, chunks=Chunks(2, None)):
        assert torch.equal(found, slow)
        assert max((len(part.x_ND) for part in seen), default=0) <= 2 * 3
        assert group.ledger.traffic("dispatch").calls == -(-max(rows) // 2)


def test_a_rank_alone_computes_all_at_once_or_in_rounds() -> None:
    x, ids, weights = make_rank(5, 8, 3, seed=1)
    here = torch.zeros(5, 3, dtype=torch.int64)
    for max_rows in (2, 4096):
        found = Dispatcher(SoloGroup(), chunks=Chunks(max_rows)).apply(x, ids, weights, here, x, sums_of)
        assert torch.equal(found, slow_apply(x, ids, weights, here, x, sums_of))


@pytest.mark.parametrize("messages", [True, False])
@pytest.mark.parametrize("rows", [0, 3, 40])
def test_what_is_computed_beside_is_computed_once_with_rows_under_way(rows: int, messages: bool) -> None:
    made = [make_rank(rows, 8, 3, seed) for seed in range(3)]
    device_of = torch.tensor([0, 1, 2, 0, 1, 2, 2, 2])

    def body(group: ThreadGroup) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
        x, ids, weights = made[group.rank]
        device, sent = device_of[ids.long()], list[int]()

        def residual() -> torch.Tensor:
            sent.append(group.posted_messages)
            return x.flip(0)

        chunks = Chunks(max_rows=16, overlap_rows=16)
        found = Dispatcher(group, chunks=chunks).apply(x, ids, weights, device, residual, sums_of)
        return found, slow_apply(x, ids, weights, device, x.flip(0), sums_of), sent

    for found, slow, sent in run_ranks(3, body, messages=messages):
        assert torch.equal(found, slow)
        assert sent == [2 * min(AHEAD, Chunks(max_rows=16).count(rows)) if messages else 0]
