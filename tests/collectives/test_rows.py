"""Rows shared out and brought together again."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from smoe.collectives.group import SoloGroup
from smoe.collectives.rows import RowOrder, all_reduce_in_order, gather_rows, reduce_scatter
from tests.collectives.thread_group import run_ranks


@st.composite
def orders(draw: st.DrawFn) -> tuple[int, RowOrder]:
    """Fewer rows than ranks, none, uneven shares, all rows to one rank: whatever adds up."""
    size, rows = draw(st.integers(1, 4)), draw(st.integers(0, 9))
    cuts = sorted(draw(st.lists(st.integers(0, rows), min_size=size - 1, max_size=size - 1)))
    edges = [0, *cuts, rows]
    counts = tuple(b - a for a, b in itertools.pairwise(edges))
    order = draw(st.permutations(range(rows)))
    return size, RowOrder(counts=counts, order_T=torch.tensor(order, dtype=torch.int64))


@settings(deadline=None, max_examples=60)
@given(orders())
def test_gather_undoes_the_sharing_and_the_sums_are_of_all_ranks(case: tuple[int, RowOrder]) -> None:
    size, order = case
    rows = sum(order.counts)
    generator = torch.Generator().manual_seed(rows)
    partials = [torch.randn(rows, 5, generator=generator) for _ in range(size)]
    residual = torch.randn(rows, 5, generator=generator)
    expected = torch.zeros(rows, 5)
    for partial in partials:
        expected += partial
    expected += residual

    def body(group):
        own = reduce_scatter(partials[group.rank], residual, order, group)
        assert torch.equal(own, order.take(expected, group.rank))
        return gather_rows(own, order, group), all_reduce_in_order(partials[group.rank], residual, group)

    for gathered, reduced in run_ranks(size, body):
        assert torch.equal(gathered, expected)
        assert torch.equal(reduced, expected)  # the order of the sum is the same whoever adds


@pytest.mark.parametrize(("rows", "ranks", "counts"), [(0, 3, (0, 0, 0)), (2, 3, (1, 1, 0)), (7, 3, (3, 2, 2))])
def test_even_shares_differ_by_one_at_most(rows: int, ranks: int, counts: tuple[int, ...]) -> None:
    assert RowOrder.even(rows, ranks).counts == counts


def test_one_rank_alone_sends_nothing_and_rounds_once() -> None:
    group = SoloGroup()
    partial, residual = torch.tensor([[1.0]], dtype=torch.bfloat16), torch.tensor([[256.0]], dtype=torch.bfloat16)
    own = reduce_scatter(partial, residual, RowOrder.even(1, 1), group)
    assert own.dtype == torch.bfloat16
    assert own.item() == 256.0
    assert gather_rows(own, RowOrder.even(1, 1), group) is own


def test_the_ledger_counts_what_leaves_a_rank_by_what_it_crosses() -> None:
    hosts = ["a", "a", "b"]
    order = RowOrder(counts=(3, 1, 2))

    def body(group):
        own = reduce_scatter(torch.zeros(6, 4), torch.zeros(6, 4), order, group)
        gather_rows(own, order, group)
        return group.ledger.all_traffic(), group.ledger.stats()

    (first, stats), _, (third, _) = run_ranks(3, body, hosts=hosts)
    assert (stats.calls, stats.host_bytes, stats.network_bytes) == (2, 4 * 16, 5 * 16)
    assert (first["reduce"].device, first["reduce"].host, first["reduce"].network) == (3 * 16, 1 * 16, 2 * 16)
    assert (first["gather"].device, first["gather"].host, first["gather"].network) == (3 * 16, 3 * 16, 3 * 16)
    assert (third["reduce"].device, third["reduce"].host, third["reduce"].network) == (2 * 16, 0, 4 * 16)
    assert third["gather"].wire == 2 * 2 * 16
