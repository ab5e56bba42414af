"""`moe_pairs` on a device. Letters: T rows, K choices, D hidden."""

from typing import Any

from torch import Tensor

from smoe.kernels.int4_table import Int4Table
from smoe.kernels.slots import SlotTable
from smoe.kernels.triton_moe.form import form_of
from smoe.kernels.triton_moe.grouped import down, gate_up
from smoe.kernels.triton_moe.int4 import MAGIC, int4_down, int4_gate_up
from smoe.kernels.triton_moe.tiles import place_pairs


def device_pairs(x_TD: Tensor, slots_TK: Tensor, table: SlotTable[Any], pairs_TKD: Tensor) -> bool:
    """False, and nothing done, if the table's slots are not of one kind or not on x's device, or x is not fp32, bf16 or
    fp16.

    The host does not see the slots: those outside of the table are left out, like negative ones, and an empty one gives
    NaN. The bits of a pair depend on its row and its expert alone.
    """
    if x_TD.dtype not in MAGIC or form_of(table).current(x_TD.device) is None:
        return False
    x_TD = x_TD if table.norm is None else table.norm.reference(x_TD)
    places, out_ND = place_pairs(slots_TK, table.num_slots), pairs_TKD.view(-1, table.hidden)
    if isinstance(table, Int4Table):
        int4_down(int4_gate_up(x_TD, places, slots_TK.shape[1], table), places, table, out_ND)
    else:
        down(gate_up(x_TD, places, slots_TK.shape[1], table), places, table, out_ND)
    return True
