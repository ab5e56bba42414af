"""Rows to the ranks that hold their experts, and the weighted sums back.

A row goes once to each rank that holds one or more of its experts (or, for comparison, once for each expert), with the
ids and weights to compute there; it comes back as one summed row. Rows whose experts are here are not sent. Shapes: R
own rows, D hidden, K choices a row, G ranks, S rows to compute somewhere, N rows to compute here. Ids are the model's
expert ids everywhere; -1 stands for no choice.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from smoe.collectives.group import Group
from smoe.collectives.message import Layout
from smoe.collectives.sends import Sends, add_up, plan_sends

Tensor = torch.Tensor

MAX_ROWS = 4096
OVERLAP_ROWS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatched:
    """`x_ND`, `ids_NK` i32 and `weights_NK` f32 are to be computed here."""

    x_ND: Tensor
    ids_NK: Tensor
    weights_NK: Tensor

    @classmethod
    def joined(cls, parts: "list[Dispatched]") -> "Dispatched":
        if len(parts) == 1:
            return parts[0]
        return cls(
            x_ND=torch.cat([part.x_ND for part in parts]),
            ids_NK=torch.cat([part.ids_NK for part in parts]),
            weights_NK=torch.cat([part.weights_NK for part in parts]),
        )


Compute = Callable[[Dispatched], Tensor]
"""[N, D]: the weighted sums of rows to compute here. What it gives for a row does not depend on the others."""


class Dispatcher:
    """`dedup=False` sends a row once for each of its experts, as systems without de-duplication do.

    Of at most `max_rows` own rows at a time, so that a rank never receives more than `max_rows` of each other one.
    """

    def __init__(
        self, group: Group, *, dedup: bool = True, max_rows: int = MAX_ROWS, overlap_rows: int | None = OVERLAP_ROWS
    ) -> None:
        """From `overlap_rows` own rows on, this rank computes what it has while the rest is under way, and answers each
        rank by itself: several calls of `compute` a layer. None: always one."""
        self._group, self._dedup, self._max_rows, self._overlap_rows = group, dedup, max_rows, overlap_rows
        self._rooms: dict[int, Tensor] = {}

    def apply(
        self,
        x_RD: Tensor,
        ids_RK: Tensor,
        weights_RK: Tensor,
        device_RK: Tensor,
        residual_RD: Tensor,
        compute: Compute,
    ) -> Tensor:
        """[R, D]: residual + the sums of each row's experts, computed where `device_RK` i64 says, by places in the
        group; added in ascending place. Collective; R may be 0."""
        group = self._group
        exchange = self._by_messages if group.messages and group.size > 1 else self._by_collectives
        rows, done, parts = self._max_rows, 0, []
        wanted = total = max(1, -(-len(x_RD) // rows))
        while done < total:
            own = slice(done * rows, (done + 1) * rows)
            sends = plan_sends(ids_RK[own], weights_RK[own], device_RK[own], group.size, dedup=self._dedup)
            back_SD, rounds = exchange(x_RD[own], sends, wanted, compute)
            parts.append(add_up(back_SD, sends, residual_RD[own]))
            done, total = done + 1, max(total, rounds)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _by_messages(self, x_RD: Tensor, sends: Sends, wanted: int, compute: Compute) -> tuple[Tensor, int]:
        """One message to each other rank and one back. Nobody knows beforehand how much comes, only how much can."""
        group, me = self._group, self._group.rank
        layout = Layout(x_RD.shape[1], x_RD.dtype, sends.ids_SK.shape[1])
        # The next rank first, and answers to the one before first: no two ranks send to the same one at once.
        nexts = [(me + step) % group.size for step in range(1, group.size)]
        dispatch, combine = group.open("dispatch"), group.open("combine")
        rooms = {place: self._room(place, layout) for place in nexts}
        back_SD = x_RD.new_empty((len(sends.row_S), layout.hidden))
        for place in nexts:
            dispatch.receive(place, rooms[place])
        for place in nexts:
            if sends.counts[place]:
                combine.receive(place, back_SD[sends.to(place)])
        for place in nexts:
            at = sends.to(place)
            packed = layout.pack(x_RD, sends.row_S[at], sends.ids_SK[at], sends.weights_SK[at], wanted)
            dispatch.send(place, packed)
        stay = sends.to(me)
        own = Dispatched(
            x_ND=x_RD.index_select(0, sends.row_S[stay]), ids_NK=sends.ids_SK[stay], weights_NK=sends.weights_SK[stay]
        )
        rounds = wanted
        waiting: list[tuple[int, Dispatched]] = []
        overlap = self._overlap_rows is not None and len(x_RD) >= self._overlap_rows
        if overlap:
            back_SD[stay] = _computed(own, compute)
        else:
            waiting.append((me, own))
        for place in reversed(nexts):
            dispatch.arrived(place)
            x_ND, ids_NK, weights_NK, asked = layout.unpack(rooms[place])
            rounds = max(rounds, asked)
            came = Dispatched(x_ND=x_ND, ids_NK=ids_NK, weights_NK=weights_NK)
            if not overlap:
                waiting.append((place, came))
            elif len(x_ND):
                combine.send(place, _computed(came, compute))
        if waiting:
            sums_ND = _computed(Dispatched.joined([came for _, came in waiting]), compute)
            parts = torch.split(sums_ND, [len(came.x_ND) for _, came in waiting])
            for (place, _), sums in zip(waiting, parts, strict=True):
                if place == me:
                    back_SD[stay] = sums
                elif len(sums):
                    combine.send(place, sums)
        dispatch.finish()
        combine.finish()
        return back_SD, rounds

    def _room(self, place: int, layout: Layout) -> Tensor:
        """For the longest message from `place`. Kept: of what is new at each call, pages would be cleared."""
        most = layout.nbytes(self._max_rows * (1 if self._dedup else layout.choices))
        room = self._rooms.get(place)
        if room is None or len(room) < most:
            room = self._rooms[place] = torch.empty(most, dtype=torch.uint8)
        return room

    def _by_collectives(self, x_RD: Tensor, sends: Sends, wanted: int, compute: Compute) -> tuple[Tensor, int]:
        """Sizes first, then one all-to-all there and one back."""
        group = self._group
        layout = Layout(x_RD.shape[1], x_RD.dtype, sends.ids_SK.shape[1])
        told_G2 = torch.tensor([(count, wanted) for count in sends.counts], device=x_RD.device)
        heard_G2 = group.all_to_all(told_G2, [1] * group.size, [1] * group.size, "sizes")
        received, rounds_G = heard_G2.T.tolist()
        packed = layout.pack_rows(x_RD, sends.row_S, sends.ids_SK, sends.weights_SK)
        x_ND, ids_NK, weights_NK = layout.unpack_rows(group.all_to_all(packed, sends.counts, received, "dispatch"))
        sums_ND = _computed(Dispatched(x_ND=x_ND, ids_NK=ids_NK, weights_NK=weights_NK), compute)
        return group.all_to_all(sums_ND, received, sends.counts, "combine"), max(rounds_G)


def _computed(rows: Dispatched, compute: Compute) -> Tensor:
    return compute(rows) if len(rows.x_ND) else rows.x_ND
