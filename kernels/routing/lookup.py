"""Where a row should go before its layer's router runs. Letters: T rows, V token ids, G devices, K choices.

`smoe.core.placement.RoutingTables` describes the tables, `smoe.clustering.lookup` is the same rule in numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from smoe.kernels.routing.launch import block_of, blocks, launch, use_triton

if TYPE_CHECKING:
    import triton.language as tl


class LayerTables(NamedTuple):
    """Tables of one layer on the device that computes, all contiguous: token_device_V i16, token_second_V i16,
    token_confidence_V f16; chain_device, chain_confidence [G+1, G+1] i16, f16."""

    token_device_V: Tensor
    token_second_V: Tensor
    token_confidence_V: Tensor
    chain_device: Tensor
    chain_confidence: Tensor


class Destinations(NamedTuple):
    """device_T, second_T i32 (where to go when `device` is full), confidence_T f32, by_token_T bool: T decided."""

    device_T: Tensor
    second_T: Tensor
    confidence_T: Tensor
    by_token_T: Tensor


def lookup(
    tables: LayerTables, token_ids_T: Tensor, before2_T: Tensor, before1_T: Tensor, chain: bool = True
) -> Destinations:
    """T where its confidence is higher, else A by the devices `before2_T`, `before1_T` that the rows were on two layers
    and one layer before, G where there is none; all integer.

    Ids that the tables do not know (negative, V and above) go by A. Where A decides, T's device is the second choice if
    it is another, else T's second. `chain=False` leaves A out, but for unknown ids.
    """
    if not use_triton(token_ids_T):
        return lookup_ref(tables, token_ids_T, before2_T, before1_T, chain)
    num_rows, on = len(token_ids_T), token_ids_T.device
    types = (torch.int32, torch.int32, torch.float32, torch.bool)
    found = Destinations(*(torch.empty(num_rows, dtype=dtype, device=on) for dtype in types))
    rows = (t.contiguous() for t in (token_ids_T, before2_T, before1_T))
    sizes = (num_rows, len(tables.token_device_V), len(tables.chain_device))
    block = 256
    launch(_lookup, (blocks(num_rows, block),), token_ids_T, *tables, *rows, *found, *sizes, CHAIN=chain, BLOCK=block)
    return found


def lookup_ref(
    tables: LayerTables, token_ids_T: Tensor, before2_T: Tensor, before1_T: Tensor, chain: bool = True
) -> Destinations:
    """The torch twin."""
    num_states = len(tables.chain_device)
    known_T = (token_ids_T >= 0) & (token_ids_T < len(tables.token_device_V))
    id_T = torch.where(known_T, token_ids_T, 0).long()
    state_T = before2_T.long() * num_states + before1_T.long()
    token_device_T, chain_device_T = tables.token_device_V[id_T], tables.chain_device.flatten()[state_T]
    token_sure_T, chain_sure_T = tables.token_confidence_V[id_T], tables.chain_confidence.flatten()[state_T]
    by_token_T = known_T & (token_sure_T > chain_sure_T) if chain else known_T
    device_T = torch.where(by_token_T, token_device_T, chain_device_T).to(torch.int32)
    second_T = torch.where(token_device_T != device_T, token_device_T, tables.token_second_V[id_T]).to(torch.int32)
    return Destinations(
        device_T=device_T,
        second_T=torch.where(known_T, second_T, (device_T + 1) % (num_states - 1)),
        confidence_T=torch.where(by_token_T, token_sure_T, chain_sure_T).float(),
        by_token_T=by_token_T,
    )


def majority_device(device_TK: Tensor, num_devices: int) -> Tensor:
    """[T] i32: the device of most of a row's choices, the lowest of equals; negative choices are left out.

    The history that the next layers' lookup goes by. A row without choices is on device 0.
    """
    if not use_triton(device_TK):
        return majority_device_ref(device_TK, num_devices)
    device_TK = device_TK.contiguous()
    num_rows, num_choices = device_TK.shape
    majority_T = torch.empty(num_rows, dtype=torch.int32, device=device_TK.device)
    block_g = block_of(num_devices)
    block_t = max(1, 1024 // block_g)
    sizes = {"BLOCK_T": block_t, "BLOCK_G": block_g}
    grid = (blocks(num_rows, block_t),)
    launch(_majority, grid, device_TK, device_TK, majority_T, num_rows, num_choices, num_devices, **sizes)
    return majority_T


def majority_device_ref(device_TK: Tensor, num_devices: int) -> Tensor:
    """The torch twin."""
    # A column past the last device counts the choices that are left out.
    column_TK = torch.where((device_TK < 0) | (device_TK >= num_devices), num_devices, device_TK.long())
    counts = torch.zeros(len(device_TK), num_devices + 1, dtype=torch.int32, device=device_TK.device)
    counts.scatter_add_(1, column_TK, torch.ones_like(column_TK, dtype=torch.int32))
    return counts[:, :num_devices].argmax(-1).to(torch.int32)


def _lookup(
    token_device: tl.tensor,
    token_second: tl.tensor,
    token_confidence: tl.tensor,
    chain_device: tl.tensor,
    chain_confidence: tl.tensor,
    token_ids: tl.tensor,
    before2: tl.tensor,
    before1: tl.tensor,
    out_device: tl.tensor,
    out_second: tl.tensor,
    out_confidence: tl.tensor,
    out_by_token: tl.tensor,
    num_rows: tl.tensor,
    vocab: tl.tensor,
    num_states: tl.tensor,
    CHAIN: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < num_rows
    token = tl.load(token_ids + row, mask=inside, other=-1)
    known = (token >= 0) & (token < vocab)
    t_device = tl.load(token_device + token, mask=known, other=0).to(tl.int32)
    t_second = tl.load(token_second + token, mask=known, other=0).to(tl.int32)
    t_sure = tl.load(token_confidence + token, mask=known, other=0.0).to(tl.float32)
    state = tl.load(before2 + row, mask=inside, other=0).to(tl.int32) * num_states
    state += tl.load(before1 + row, mask=inside, other=0).to(tl.int32)
    a_device = tl.load(chain_device + state, mask=inside, other=0).to(tl.int32)
    a_sure = tl.load(chain_confidence + state, mask=inside, other=0.0).to(tl.float32)
    by_token = known
    if CHAIN:
        by_token = known & (t_sure > a_sure)
    device = tl.where(by_token, t_device, a_device)
    second = tl.where(t_device != device, t_device, t_second)
    tl.store(out_device + row, device, mask=inside)
    tl.store(out_second + row, tl.where(known, second, (device + 1) % (num_states - 1)), mask=inside)
    tl.store(out_confidence + row, tl.where(by_token, t_sure, a_sure), mask=inside)
    tl.store(out_by_token + row, by_token, mask=inside)


def _majority(
    device: tl.tensor,
    majority: tl.tensor,
    num_rows: tl.tensor,
    num_choices: tl.tensor,
    num_devices: tl.tensor,
    BLOCK_T: tl.constexpr,
    BLOCK_G: tl.constexpr,
) -> None:
    row = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    all_devices = tl.arange(0, BLOCK_G)
    count = tl.zeros((BLOCK_T, BLOCK_G), tl.int32)
    for choice in range(num_choices):
        chosen = tl.load(device + row * num_choices + choice, mask=row < num_rows, other=-1).to(tl.int32)
        count += ((chosen[:, None] == all_devices[None, :]) & (all_devices < num_devices)[None, :]).to(tl.int32)
    # The largest key has the most choices, and of equals the lowest device.
    key = count * BLOCK_G + (BLOCK_G - 1 - all_devices)[None, :]
    tl.store(majority + row, BLOCK_G - 1 - tl.max(key, 1) % BLOCK_G, mask=row < num_rows)
