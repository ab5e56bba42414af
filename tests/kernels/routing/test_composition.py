"""What the operations make together, for any sizes and placements: identities, and a whole layer over several ranks.

Payloads are small integers that tell their row, so that every order of additions has the same bits and a row in a wrong
place shows.
"""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from smoe.kernels.routing.align import align
from smoe.kernels.routing.bins import sort_by_bin
from smoe.kernels.routing.dispatch import pack_choices, plan_dispatch, sum_places
from smoe.kernels.routing.launch import INTERPRETED
from smoe.kernels.routing.reduce import permute_reduce, reduce_chunks
from smoe.kernels.routing.rows import gather_rows, scatter_rows

pytestmark = pytest.mark.skipif(INTERPRETED, reason="hundreds of examples; what they call is tested one by one")
F32, NUM_EXPERTS = torch.float32, 6
SIZES = {"t": st.integers(0, 40), "g": st.integers(1, 6), "seed": st.integers(0, 10**6)}
EXAMPLES = settings(max_examples=60, deadline=None, derandomize=True)


def payload(num_ranks: int, num_rows: int, random: torch.Generator) -> Tensor:
    """[R, T, 3]: column 0 of the sum over ranks is 1 + row."""
    partials = torch.randint(-9, 9, (num_ranks, num_rows, 3), generator=random).float()
    partials[:, :, 0] = 0
    partials[-1, :, 0] = 1 + torch.arange(num_rows)
    return partials


def scattered(partials_RTD: Tensor, order: Tensor, bounds: list[int]) -> list[Tensor]:
    """Each rank packs and sends; rank g sums chunk g of all of them."""
    packed = [gather_rows(partial_TD, order) for partial_TD in partials_RTD]
    return [reduce_chunks(torch.stack([p[a:b] for p in packed]), F32, None, order[a:b]) for a, b in pairwise(bounds)]


@given(**SIZES, padded=st.booleans())
@EXAMPLES
def test_scatter_gather_and_unpermute_make_an_all_reduce(t: int, g: int, seed: int, padded: bool) -> None:
    random = torch.Generator().manual_seed(seed)
    partials = payload(g, t, random)
    placed, capacity = torch.randint(0, g, (t,), generator=random), max(1, t)  # any rows on any rank, also all on one
    made = sort_by_bin(placed, g, capacity if padded else None)
    chunks = scattered(partials, made.order, made.offsets.tolist())
    assert torch.equal(gather_rows(torch.cat(chunks), made.inverse_N), partials.sum(0))
    assert torch.equal(torch.cat(chunks), permute_reduce(partials, made.order, F32))


@given(**SIZES)
@EXAMPLES
def test_order_and_inverse_undo_each_other(t: int, g: int, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    made = sort_by_bin(torch.randint(0, g, (t,), generator=random), g)
    rows = torch.arange(t)
    assert torch.equal(made.order[made.inverse_N.long()].long(), rows)
    assert torch.equal(made.inverse_N[made.order.long()].long(), rows)
    x, back = payload(1, t, random)[0], torch.full((t, 3), torch.nan)
    scatter_rows(gather_rows(x, made.order), made.order, back)
    assert torch.equal(back, x)
    again = sort_by_bin(sort_by_bin(made.inverse_N, max(t, 1)).order, max(t, 1))
    assert torch.equal(again.order, made.inverse_N)  # the sort of a permutation is its inverse


@given(**SIZES, spare=st.integers(0, 3))
@EXAMPLES
def test_alignment_moves_no_more_than_it_must(t: int, g: int, seed: int, spare: int) -> None:
    random = torch.Generator().manual_seed(seed)
    device, second = torch.randint(0, g, (2, t), generator=random)
    sure, capacity = torch.randint(0, 4, (t,), generator=random) / 4, -(-t // g) + spare
    placed = align(device, second, sure, g, capacity)
    assert int(torch.bincount(placed, minlength=g).max()) <= capacity
    demand, stayed = (torch.bincount(d, minlength=g) for d in (device, placed[placed == device]))
    # A row that comes back to its first choice as a leftover does not exist: that one was full.
    assert torch.equal(stayed, demand.clamp(max=capacity))


@given(**SIZES, k=st.integers(1, 4))
@EXAMPLES
def test_a_layer_over_several_ranks_is_the_layer(t: int, g: int, seed: int, k: int) -> None:
    """Reduce to the rows of each rank, dispatch, experts, sum, gather: experts multiply by their id + 1."""
    random = torch.Generator().manual_seed(seed)
    partials, placed = payload(g, t, random), torch.randint(0, g, (t,), generator=random)
    ids_TK = torch.randint(0, NUM_EXPERTS, (t, k), generator=random, dtype=torch.int32)
    weights_TK = torch.randint(1, 4, (t, k), generator=random).float()
    device_TK = torch.randint(0, g, (t, k), generator=random)  # replicas: the same expert on any device
    made = sort_by_bin(placed, g)
    answers = []
    for own, (a, b) in zip(
        scattered(partials, made.order, made.offsets.tolist()), pairwise(made.offsets.tolist()), strict=True
    ):
        rows = made.order[a:b].long()
        plan = plan_dispatch(device_TK[rows], g)
        ids_SK, weights_SK = pack_choices(plan, device_TK[rows], ids_TK[rows], weights_TK[rows])
        sent_SD, back_SD = gather_rows(own, plan.row_S), torch.full((len(plan.row_S), 3), torch.nan)
        for begin, end in pairwise(plan.offsets.tolist()):  # what each device gets and answers
            factor = (weights_SK[begin:end] * (ids_SK[begin:end] + 1)).sum(-1)
            back_SD[begin:end] = sent_SD[begin:end] * factor[:, None]
        answers.append(sum_places(back_SD, plan.place_TG, F32, own))
    whole = partials.sum(0)
    expected = whole + whole * (weights_TK * (ids_TK + 1)).sum(-1)[:, None]
    assert torch.equal(gather_rows(torch.cat(answers), made.inverse_N), expected)
