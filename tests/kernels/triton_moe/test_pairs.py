"""Experts on a device against float64: dense and 4-bit tables, every ragged shape, and what must not touch a pair."""

from typing import Any

import pytest
import torch
from torch import Tensor

from smoe.kernels import ExpertTable, RMSNorm, moe, moe_pairs, native
from smoe.kernels.mixture import moe_pairs_ref, moe_ref
from smoe.kernels.routing.launch import INTERPRETED
from smoe.kernels.slots import SlotTable
from smoe.kernels.triton_moe.form import form_of
from smoe.kernels.triton_moe.pairs import device_pairs
from tests.kernels.routing.conftest import KERNEL_PATHS
from tests.kernels.triton_moe.cases import BF16, CASES, F16, F32, Case, Put, check, expected, route, table_of

# Every shape as dense experts, those that 4-bit ones can trip over as such, too.
SHAPES = [(name, None) for name in CASES] + [
    ("smallest", 128),
    ("no rows", 32),
    ("one row, unsorted", 64),
    ("no multiples of a block, biases", 64),
    ("one expert takes all, several tiles", 32),
    ("more slots than pairs", 32),
    ("every pair left out", 64),
]


def pairs(path: str, x: Tensor, slots: Tensor, table: SlotTable[Any]) -> Tensor:
    out = torch.full((*slots.shape, table.hidden), torch.nan, device=x.device)
    if path == "twin":
        moe_pairs_ref(x, slots, table, out)
    else:
        assert device_pairs(x, slots, table, out)
    return out


@pytest.mark.parametrize(("name", "group_size"), SHAPES)
def test_near_float64(put: Put, path: str, dtype: torch.dtype, name: str, group_size: int | None) -> None:
    torch.manual_seed(len(name))
    case = CASES[name]
    table, x, slots = table_of(case, put, dtype, group_size), torch.randn(case.rows, case.hidden).to(dtype), route(case)
    made = pairs(path, put(x), put(slots), table)
    check(made, slots, expected(x, slots, table), dtype)


@pytest.mark.parametrize("choices", range(1, 9))
def test_any_number_of_choices(put: Put, path: str, choices: int) -> None:
    case = Case(2, choices, 9, 20, 12)
    table, x, slots = table_of(case, put, F32), torch.randn(2, 20), route(case)
    check(pairs(path, put(x), put(slots), table), slots, expected(x, slots, table), F32)


@pytest.mark.parametrize(("hidden", "ffn"), [(290, 12), (12, 290)])
@pytest.mark.parametrize("group_size", [32, 64, 128])
def test_inner_loop_turns_more_than_once(put: Put, path: str, group_size: int, hidden: int, ffn: int) -> None:
    """290 columns: a turn and a rest, the last group shorter than the others, the last block not full."""
    case, narrow = Case(1, 2, 2, hidden, ffn, "gptoss", True), F16 if INTERPRETED else BF16
    table, x, slots = table_of(case, put, narrow, group_size), torch.randn(1, hidden).to(narrow), route(case)
    check(pairs(path, put(x), put(slots), table), slots, expected(x, slots, table), narrow)


@pytest.mark.parametrize("narrow", [F16] if INTERPRETED else [BF16, F16])  # the interpreter's bf16 is wrong
def test_weights_narrower_than_the_rows(put: Put, path: str, narrow: torch.dtype) -> None:
    """Widened, and nothing else: the error is that of fp32."""
    case = Case(4, 2, 3, 70, 44)
    table, x, slots = table_of(case, put, narrow), torch.randn(4, 70), route(case)
    check(pairs(path, put(x), put(slots), table), slots, expected(x, slots, table), F32)


@pytest.mark.parametrize("path", KERNEL_PATHS, indirect=True)  # the twin's products are the machine's library's
@pytest.mark.parametrize(("dtype", "group_size"), [(F32, None), (F16, None), (F16, 128)])
def test_bits_of_a_row_do_not_depend_on_the_rows_beside_it(
    put: Put, path: str, dtype: torch.dtype, group_size: int | None
) -> None:
    """Alone (not sorted), among few (small tiles) and among many (large tiles)."""
    dtype = BF16 if dtype is F16 and path == "cuda" else dtype
    rows = 100 if (dtype, group_size) == (F16, None) or path == "cuda" else 24
    case = Case(rows, 2, 3, 36, 70)
    table, x, slots = table_of(case, put, dtype, group_size), torch.randn(rows, 36).to(dtype), route(case)
    whole = pairs(path, put(x), put(slots), table)
    for begin, end in ((0, 1), (11, 12), (10, 17), (16, rows)):
        part = pairs(path, put(x[begin:end]), put(slots[begin:end]), table)
        assert torch.equal(part.nan_to_num(9.0), whole[begin:end].nan_to_num(9.0)), (begin, end)


@pytest.mark.parametrize("path", KERNEL_PATHS, indirect=True)  # the twin raises
@pytest.mark.parametrize("group_size", [None, 32])
def test_an_empty_slot_gives_nan_and_one_outside_nothing(put: Put, path: str, group_size: int | None) -> None:
    case = Case(2, 3, 4, 40, 36)
    table, x = table_of(case, put, F32, group_size), put(torch.randn(2, 40))
    table.clear(1)
    slots = put(torch.tensor([[0, 1, 2], [4, 3, 99]], dtype=torch.int32))
    for rows in (slice(0, 2), slice(0, 1), slice(1, 2)):
        out = torch.full((len(slots[rows]), 3, 40), 7.0, device=x.device)
        assert device_pairs(x[rows], slots[rows], table, out)
        for at, row in enumerate(range(2)[rows]):
            kinds = ["nan" if p.isnan().all() else "same" if (p == 7).all() else "number" for p in out[at]]
            assert kinds == [["number", "nan", "number"], ["same", "number", "same"]][row]


def test_nan_and_infinity_reach_their_own_row_only(put: Put, path: str) -> None:
    """Bounds of the activation must not swallow NaN."""
    case = Case(3, 2, 3, 40, 36, "gptoss", True)
    x = torch.randn(3, 40)
    x[1, 5], slots = torch.nan, torch.tensor([[0, 1], [1, 2], [2, 0]], dtype=torch.int32)
    for group_size in (None, 32):
        made = pairs(path, put(x), put(slots), table_of(case, put, F32, group_size)).cpu()
        assert bool(made[1].isnan().all())
        assert bool(made[[0, 2]].isfinite().all())


def test_slots_set_anew_are_seen(put: Put, path: str) -> None:
    case = Case(4, 2, 3, 40, 36)
    table, other = (table_of(case, put, F32) for _ in range(2))
    x, slots = put(torch.randn(4, 40)), put(route(case))
    before = pairs(path, x, slots, table)
    for slot in range(3):
        table.set(slot, other.tensors(slot))
    after = pairs(path, x, slots, table)
    assert torch.equal(after.nan_to_num(), pairs(path, x, slots, other).nan_to_num())
    assert not torch.equal(after.nan_to_num(), before.nan_to_num())


def test_tables_of_two_kinds_are_left_to_the_twin(put: Put, path: str) -> None:
    """Another dtype, another row stride: no launch takes both."""
    case = Case(4, 2, 3, 40, 36)
    for odd in ("dtype", "stride"):
        table, x, slots = table_of(case, put, F32), put(torch.randn(4, 40)), put(route(case))
        expert = table.tensors(1)
        if odd == "dtype":
            table.set(1, type(expert)(*(None if t is None else t.to(F16) for t in expert)))
        else:
            wide = torch.zeros(36, 48, device=x.device)[:, :40].copy_(expert.gate)
            table.set(1, expert._replace(gate=wide))
        out = torch.full((4, 2, 40), torch.nan, device=x.device)
        assert not device_pairs(x, slots, table, out)
        moe_pairs(x, slots, table, out)
        check(out, slots.cpu(), expected(x.cpu(), slots.cpu(), table), F32)
        table.set(1, expert)
        assert device_pairs(x, slots, table, out)


@pytest.mark.parametrize("group_size", [None, 64])
def test_mixture(put: Put, path: str, group_size: int | None) -> None:
    """`moe` takes this path on a device: the ordered sum over what the kernels gave, with the residual."""
    native.use("torch")  # the interpreter's tensors are the library's, too
    case = Case(3, 2, 4, 40, 20, "gptoss", True)
    table, x, ids = table_of(case, put, F32, group_size), put(torch.randn(3, 40)), put(route(case))
    weights, rest = put(torch.rand(3, 2)), put(torch.randn(3, 40))
    made, wanted = moe(x, ids, ids, weights, table, rest), moe_ref(x, ids, ids, weights, table, rest)
    assert float((made - wanted).abs().max()) < 2e-5 * float(wanted.abs().max())
    if path != "twin":
        outside = torch.where(ids < 0, 4, ids)
        assert torch.equal(moe(x, outside, ids, weights, table, rest), made)


def test_what_is_as_it_was_is_not_copied_again(put: Put, path: str) -> None:
    case = Case(2, 2, 3, 40, 36)
    table, device = table_of(case, put, F32), put(torch.zeros(1)).device
    form = form_of(table)
    assert form.current(device) is not None
    words = form.words_WS
    assert form.current(device) is not None
    assert form.words_WS is words
    table.set(2, table.tensors(0))
    assert form.current(device) is not None
    assert form.words_WS is not words
    assert form.words_WS[:, 2].tolist() == form.words_WS[:, 0].tolist()


def test_a_norm_is_applied_before(put: Put, path: str) -> None:
    case = Case(3, 2, 3, 40, 36)
    plain = table_of(case, put, F32)
    norm = RMSNorm(put(torch.rand(40) + 0.5), 1e-6)
    table = ExpertTable(3, 40, 36, norm=norm)
    for slot in range(3):
        table.set(slot, plain.tensors(slot))
    x, slots = put(torch.randn(3, 40)), put(route(case))
    made, wanted = pairs(path, x, slots, table), pairs(path, norm.reference(x), slots, plain)
    assert torch.equal(made.nan_to_num(), wanted.nan_to_num())
