"""The lookup before a layer's attention reduces: each row's device by table T or A, whichever is surer.

The reference that the code on devices is tested against; T rows, G devices. Confidences are compared as f16.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from smoe.core.placement import RoutingTables

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Destinations:
    """`device`, `second` [T] i16 (where to go when `device` is full), `confidence` [T] f16, `by_token` [T] bool: T
    decided. `second` differs from `device` wherever there is a second device."""

    device: Array
    second: Array
    confidence: Array
    by_token: Array


def lookup(
    tables: RoutingTables, layer_index: int, token_ids: Array, before2: Array, before1: Array, *, chain: bool = True
) -> Destinations:
    """`before2`, `before1` [T] are the rows' devices two layers and one layer before, G where there is none.

    A row whose token id is unknown (-1) or above the tables' vocabulary goes by A. Where A decides, T's device is the
    second choice if it is another, else T's second. `chain=False` leaves A out, but for unknown ids.
    """
    num_devices = tables.chain_device.shape[1] - 1
    known = (token_ids >= 0) & (token_ids < tables.vocab_size)
    row = np.where(known, token_ids, 0)
    token_device = tables.token_device[layer_index, row]
    token_confidence = tables.token_confidence[layer_index, row]
    chain_device = tables.chain_device[layer_index, before2, before1]
    chain_confidence = tables.chain_confidence[layer_index, before2, before1]
    by_token = known & (token_confidence > chain_confidence) if chain else known
    device = np.where(by_token, token_device, chain_device)
    token_second = tables.token_second[layer_index, row]
    second = np.where(token_device != device, token_device, token_second)
    return Destinations(
        device=device,
        second=np.where(known, second, (device + 1) % num_devices).astype(np.int16),
        confidence=np.where(by_token, token_confidence, chain_confidence),
        by_token=by_token,
    )
