"""One message of a dispatch as bytes: a head, then the rows' weights (f32), values and ids (i16), each in one piece.

Shapes: N rows, D hidden, K choices a row.
"""

from dataclasses import dataclass

import torch

from smoe.collectives.wire import HEAD_BYTES, row_bytes

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Layout:
    hidden: int
    dtype: torch.dtype
    choices: int

    @property
    def row_bytes(self) -> int:
        """What one dispatched row weighs on the wire."""
        return row_bytes(self.hidden, self.dtype.itemsize, self.choices)

    def nbytes(self, rows: int) -> int:
        return HEAD_BYTES + rows * self.row_bytes

    def pack(self, x_RD: Tensor, row_N: Tensor, ids_NK: Tensor, weights_NK: Tensor, rounds: int) -> Tensor:
        """u8: the rows `row_N` of x."""
        rows = len(row_N)
        packed = torch.empty(self.nbytes(rows), dtype=torch.uint8, device=x_RD.device)
        packed[:HEAD_BYTES].view(torch.int64).copy_(torch.tensor((rows, rounds)))
        weights, x, ids = self._parts(packed, rows)
        weights.copy_(weights_NK)
        torch.index_select(x_RD, 0, row_N, out=x)
        ids.copy_(ids_NK)
        return packed

    def unpack(self, room: Tensor) -> tuple[Tensor, Tensor, Tensor, int]:
        """(x_ND, ids_NK i32, weights_NK, rounds) of the message at the start of `room`, which x and weights share."""
        rows, rounds = room[:HEAD_BYTES].view(torch.int64).tolist()
        weights, x, ids = self._parts(room, rows)
        return x, ids.to(torch.int32), weights, rounds

    def pack_rows(self, x_RD: Tensor, row_N: Tensor, ids_NK: Tensor, weights_NK: Tensor) -> Tensor:
        """[N, row_bytes] u8: no head, and each row by itself, for exchanges that cut by rows."""
        parts = (x_RD.index_select(0, row_N), weights_NK, ids_NK.to(torch.int16))
        return torch.cat([part.contiguous().view(torch.uint8) for part in parts], dim=1)

    def unpack_rows(self, packed_NX: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(x_ND, ids_NK i32, weights_NK)."""
        sizes = [self.hidden * self.dtype.itemsize, self.choices * 4, self.choices * 2]
        # Not `contiguous`, which hands back parts of no or one row as they are: with strides that no wider dtype has.
        parts = torch.split(packed_NX, sizes, dim=1)
        x, weights, ids = (part.clone(memory_format=torch.contiguous_format) for part in parts)
        return x.view(self.dtype), ids.view(torch.int16).to(torch.int32), weights.view(torch.float32)

    def _parts(self, packed: Tensor, rows: int) -> tuple[Tensor, Tensor, Tensor]:
        found, first = [], HEAD_BYTES
        for dtype, columns in ((torch.float32, self.choices), (self.dtype, self.hidden), (torch.int16, self.choices)):
            stop = first + rows * columns * dtype.itemsize
            found.append(packed[first:stop].view(dtype).view(rows, columns))
            first = stop
        return found[0], found[1], found[2]
