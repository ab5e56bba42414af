"""Dispatch by messages, a chunk of rows at a time: while one is computed, the next ones are under way.

Own rows are cut into chunks. Of each, every other rank gets one message, and sends one back where it had rows. Nobody
knows beforehand how many chunks another rank has, nor how many rows come: its messages say so. Shapes as in dispatch.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from smoe.collectives.chunks import AHEAD, Chunks
from smoe.collectives.dispatched import Compute, Dispatched, computed
from smoe.collectives.group import Group, Transfer
from smoe.collectives.message import Layout
from smoe.collectives.sends import Sends, add_up, plan_sends

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Rows:
    """What a layer asks for."""

    x_RD: Tensor
    ids_RK: Tensor
    weights_RK: Tensor
    device_RK: Tensor

    def __getitem__(self, at: slice) -> "Rows":
        return Rows(self.x_RD[at], self.ids_RK[at], self.weights_RK[at], self.device_RK[at])

    def __len__(self) -> int:
        return len(self.x_RD)

    @property
    def layout(self) -> Layout:
        return Layout(self.x_RD.shape[1], self.x_RD.dtype, self.ids_RK.shape[1])


class MessageDispatch:
    """Keeps the rooms that messages come into: pages that are new at each call would have to be cleared."""

    def __init__(self, group: Group, chunks: Chunks, *, dedup: bool) -> None:
        self.group, self.chunks, self.dedup = group, chunks, dedup
        self._rooms: dict[tuple[int, int], Tensor] = {}

    def apply(self, rows: Rows, residual: Callable[[], Tensor], compute: Compute) -> Tensor:
        return _Pass(self, rows, residual, compute).run()

    def room(self, place: int, number: int, layout: Layout) -> Tensor:
        """For the longest message from `place`, of its chunk `number`."""
        most = layout.nbytes(self.chunks.max_rows * (1 if self.dedup else layout.choices))
        key = (place, number % AHEAD)
        room = self._rooms.get(key)
        if room is None or len(room) < most:
            room = self._rooms[key] = torch.empty(most, dtype=torch.uint8)
        return room


@dataclass(slots=True)
class _Chunk:
    """`back_SD` is what own rows come to; there are none where only others have a chunk of this number."""

    dispatch: Transfer
    combine: Transfer
    rows: Rows | None = None
    sends: Sends | None = None
    back_SD: Tensor | None = None


class _Pass:
    """One layer.

    Nobody waits for ever: what a rank waits for at a chunk, others have sent once they are at the same one; and rooms
    are asked for as far ahead as anybody sends, so that nothing in a connection stays before what is waited for.
    """

    def __init__(self, made: MessageDispatch, rows: Rows, residual: Callable[[], Tensor], compute: Compute) -> None:
        group = made.group
        self._made, self._group, self._rows, self._residual, self._compute = made, group, rows, residual, compute
        chunks, self._layout = made.chunks, rows.layout
        self._size, self._own, self._overlap = chunks.max_rows, chunks.count(len(rows)), chunks.overlap(len(rows))
        # The next rank first, and what came from the one before first: no two ranks begin with the same one.
        self._nexts = [(group.rank + step) % group.size for step in range(1, group.size)]
        self._theirs = dict.fromkeys(self._nexts, 1)  # as far as is known
        self._asked = dict.fromkeys(self._nexts, 0)
        self._sent = 0
        self._chunks: list[_Chunk] = []

    def run(self) -> Tensor:
        outs: list[Tensor] = []
        residual_RD: Tensor | None = None
        number = 0
        while number < max(self._own, *self._theirs.values()):
            for place in self._nexts:
                self._ask(place, number + AHEAD)
            while self._sent < min(self._own, number + AHEAD):
                self._send()
            if residual_RD is None:
                residual_RD = self._residual()
            chunk = self._serve(number)
            chunk.dispatch.finish()
            chunk.combine.finish()
            if chunk.sends is not None and chunk.back_SD is not None:
                own = slice(number * self._size, (number + 1) * self._size)
                outs.append(add_up(chunk.back_SD, chunk.sends, residual_RD[own]))
                chunk.rows = chunk.sends = chunk.back_SD = None
            number += 1
        return outs[0] if len(outs) == 1 else torch.cat(outs)

    def _chunk(self, number: int) -> _Chunk:
        while len(self._chunks) <= number:
            self._chunks.append(_Chunk(self._group.open("dispatch"), self._group.open("combine")))
        return self._chunks[number]

    def _ask(self, place: int, stop: int) -> None:
        """For what `place` sends of its chunks before `stop`."""
        while self._asked[place] < min(self._theirs[place], stop):
            number = self._asked[place]
            self._chunk(number).dispatch.receive(place, self._made.room(place, number, self._layout))
            self._asked[place] += 1

    def _send(self) -> None:
        number, self._sent = self._sent, self._sent + 1
        rows, chunk = self._rows[number * self._size : (number + 1) * self._size], self._chunk(number)
        sends = plan_sends(rows.ids_RK, rows.weights_RK, rows.device_RK, self._group.size, dedup=self._made.dedup)
        back_SD = rows.x_RD.new_empty((len(sends.row_S), self._layout.hidden))
        for place in self._nexts:
            if sends.counts[place]:
                chunk.combine.receive(place, back_SD[sends.to(place)])
        for place in self._nexts:
            at = sends.to(place)
            parts = sends.row_S[at], sends.ids_SK[at], sends.weights_SK[at]
            chunk.dispatch.send(place, self._layout.pack(rows.x_RD, *parts, self._own))
        chunk.rows, chunk.sends, chunk.back_SD = rows, sends, back_SD

    def _serve(self, number: int) -> _Chunk:
        """Computes what there is of a chunk, one's own rows first, and answers."""
        chunk = self._chunk(number)
        waiting: list[tuple[int, Dispatched]] = []
        if chunk.rows is not None and chunk.sends is not None:
            self._take(chunk, self._group.rank, _own(chunk.rows, chunk.sends, self._group.rank), waiting)
        for place in reversed(self._nexts):
            if number < self._theirs[place]:
                chunk.dispatch.arrived(place)
                room = self._made.room(place, number, self._layout)
                x_ND, ids_NK, weights_NK, self._theirs[place] = self._layout.unpack(room)
                self._ask(place, number + AHEAD)
                self._take(chunk, place, Dispatched(x_ND=x_ND, ids_NK=ids_NK, weights_NK=weights_NK), waiting)
        if waiting:
            sums_ND = computed(Dispatched.joined([came for _, came in waiting]), self._compute)
            parts = torch.split(sums_ND, [len(came) for _, came in waiting])
            for (place, _), sums in zip(waiting, parts, strict=True):
                self._answer(chunk, place, sums)
        return chunk

    def _take(self, chunk: _Chunk, place: int, came: Dispatched, waiting: list[tuple[int, Dispatched]]) -> None:
        if self._overlap:
            self._answer(chunk, place, computed(came, self._compute))
        else:
            waiting.append((place, came))

    def _answer(self, chunk: _Chunk, place: int, sums_ND: Tensor) -> None:
        if not len(sums_ND):
            return
        if place != self._group.rank:
            chunk.combine.send(place, sums_ND)
        elif chunk.back_SD is not None and chunk.sends is not None:
            chunk.back_SD[chunk.sends.to(place)] = sums_ND


def _own(rows: Rows, sends: Sends, rank: int) -> Dispatched:
    at = sends.to(rank)
    x_ND = rows.x_RD.index_select(0, sends.row_S[at])
    return Dispatched(x_ND=x_ND, ids_NK=sends.ids_SK[at], weights_NK=sends.weights_SK[at])
