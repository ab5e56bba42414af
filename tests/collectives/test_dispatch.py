"""Rows to their experts and back, over ranks as threads."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from smoe.collectives.dispatch import Dispatcher, row_bytes
from tests.collectives.thread_group import run_ranks

HIDDEN = 6


def expert(x: torch.Tensor, expert_id: int) -> torch.Tensor:
    """Something that tells experts and rows apart."""
    return x * (expert_id + 1) + expert_id


def sums_of(x_ND: torch.Tensor, ids_NK: torch.Tensor, weights_NK: torch.Tensor) -> torch.Tensor:
    """In ascending expert id, as every bank adds."""
    out = torch.zeros(len(x_ND), x_ND.shape[1])
    for row in range(len(x_ND)):
        for expert_id, weight in sorted(zip(ids_NK[row].tolist(), weights_NK[row], strict=True)):
            if expert_id >= 0:
                out[row] += weight * expert(x_ND[row], expert_id)
    return out


def make_rank(rows: int, experts: int, choices: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.stack([torch.randperm(experts, generator=generator)[:choices] for _ in range(rows)] or [torch.empty(0)])
    ids = ids.view(rows, choices).to(torch.int32)
    return torch.randn(rows, HIDDEN, generator=generator), ids, torch.rand(rows, choices, generator=generator)


@settings(deadline=None, max_examples=40)
@given(
    rows=st.lists(st.integers(0, 5), min_size=1, max_size=4),
    choices=st.integers(1, 4),
    seed=st.integers(0, 999),
    dedup=st.booleans(),
    one_rank=st.booleans(),
)
def test_combined_rows_are_the_sums_of_their_experts(
    rows: list[int], choices: int, seed: int, dedup: bool, one_rank: bool
) -> None:
    """Ranks without rows, all rows to one rank, any spread of experts."""
    size, experts = len(rows), 8
    device_of = torch.zeros(experts, dtype=torch.int64) if one_rank else torch.arange(experts) * size // experts

    def body(group):
        x, ids, weights = make_rank(rows[group.rank], experts, choices, seed + group.rank)
        dispatcher = Dispatcher(group, dedup=dedup)
        sent = dispatcher.dispatch(x, ids, weights, device_of[ids.long()])
        assert torch.isin(sent.ids_NK[sent.ids_NK >= 0].long(), (device_of == group.rank).nonzero()).all()
        out = dispatcher.combine(sums_of(sent.x_ND, sent.ids_NK, sent.weights_NK), sent, x)
        return out, x, ids, weights, sent

    answers = run_ranks(size, body)
    for rank, (out, x, ids, weights, sent) in enumerate(answers):
        expected = x.double() + sums_of(x, ids, weights).double()
        torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=1e-5)
        devices = [sorted(set(device_of[row.long()].tolist())) for row in ids]
        per_rank = [sum(g in row for row in devices) for g in range(size)]
        if not dedup:
            per_rank = torch.bincount(device_of[ids.long()].flatten(), minlength=size).tolist()
        assert list(sent.sent) == per_rank
        assert [a[4].sent[rank] for a in answers] == list(sent.received)


def test_many_rows_for_one_expert_and_bytes_are_a_formula_of_the_rows_sent() -> None:
    rows, size = 2304, 3

    def body(group):
        generator = torch.Generator().manual_seed(group.rank)
        x = torch.randn(rows, HIDDEN, generator=generator)
        ids = torch.full((rows, 1), 7, dtype=torch.int32)
        dispatcher = Dispatcher(group)
        sent = dispatcher.dispatch(x, ids, torch.ones(rows, 1), torch.full((rows, 1), 2))
        out = dispatcher.combine(sums_of(sent.x_ND, sent.ids_NK, sent.weights_NK), sent, torch.zeros_like(x))
        torch.testing.assert_close(out, expert(x, 7))
        return len(sent.x_ND), group.ledger.all_traffic()

    answers = run_ranks(size, body)
    assert [count for count, _ in answers] == [0, 0, size * rows]
    for rank, (_, traffic) in enumerate(answers):
        leaves = 0 if rank == 2 else rows
        assert traffic["dispatch"].wire == leaves * row_bytes(HIDDEN, torch.float32, 1)
        assert traffic["combine"].wire == (2 * rows * HIDDEN * 4 if rank == 2 else 0)


def test_bf16_rows_keep_their_bits_on_the_way() -> None:
    x = torch.randn(5, HIDDEN).to(torch.bfloat16)

    def body(group):
        ids = torch.arange(5, dtype=torch.int32).view(5, 1)
        sent = Dispatcher(group).dispatch(x, ids, torch.ones(5, 1), ids.long() % 2)
        return sent.x_ND, sent.ids_NK

    for rank, (x_ND, ids_NK) in enumerate(run_ranks(2, body)):
        mine = [i for i in range(5) if i % 2 == rank]
        assert ids_NK.flatten().tolist() == mine * 2
        assert torch.equal(x_ND, x[mine * 2])


def test_the_sum_does_not_depend_on_who_works_on_a_row() -> None:
    """Rows moved to another rank give the same bits: the same partial sums, added in the same order."""
    x, ids, weights = make_rank(12, 8, 4, seed=3)
    device_of = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])

    def work(split: list[list[int]]):
        def body(group):
            mine = split[group.rank]
            dispatcher = Dispatcher(group)
            sent = dispatcher.dispatch(x[mine], ids[mine], weights[mine], device_of[ids[mine].long()])
            return dispatcher.combine(sums_of(sent.x_ND, sent.ids_NK, sent.weights_NK), sent, x[mine])

        out = torch.empty_like(x)
        for mine, rows in zip(split, run_ranks(3, body), strict=True):
            out[mine] = rows
        return out

    plain = work([[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]])
    moved = work([[11, 5, 0], [1, 2, 3, 4, 6, 7, 8], [10, 9]])
    assert torch.equal(plain, moved)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(plain, moved + 1)


@pytest.mark.parametrize("rows", [(0, 7, 3), (5, 5, 5), (1, 0, 0), (9, 2, 4)])
def test_few_rows_at_a_time_give_the_same_sums_and_never_more_than_fit(rows: tuple[int, ...]) -> None:
    """Ranks need unequal numbers of rounds, and all take part until the last is done."""
    device_of = torch.tensor([0, 1, 2, 0, 1, 2, 2, 2])

    def body(group, max_rows):
        x, ids, weights = make_rank(rows[group.rank], 8, 4, seed=group.rank)
        seen = []

        def compute(sent):
            seen.append(max(sent.received))
            return sums_of(sent.x_ND, sent.ids_NK, sent.weights_NK)

        dispatcher = Dispatcher(group, max_rows=max_rows)
        return dispatcher.apply(x, ids, weights, device_of[ids.long()], x, compute), seen

    whole = run_ranks(3, lambda group: body(group, 4096))
    parts = run_ranks(3, lambda group: body(group, 2))
    for (expected, once), (found, seen) in zip(whole, parts, strict=True):
        assert torch.equal(found, expected)
        assert len(once) == 1
        assert len(seen) == -(-max(rows) // 2)
        assert max(seen) <= 2
