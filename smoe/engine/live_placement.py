"""From one placement to another while the model runs: on all ranks or on none."""

import itertools
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch

from smoe.collectives.byte_streams import MAX_BYTES, exchange_streams
from smoe.collectives.expert_map import expert_places, held_experts
from smoe.collectives.expert_moves import ExpertMove, expert_moves, moves_by_place
from smoe.collectives.group import Group
from smoe.collectives.schedules.protocol import Schedule
from smoe.core.errors import CapacityError, ConfigError, PlacementError, SmoeError
from smoe.core.placement import Placement
from smoe.core.step import ExpertsMoved
from smoe.kernels import ExpertTensors
from smoe.models.dispatched import DispatchedBank, HeldExperts, RankBank
from smoe.models.spread import TensorParallel

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """All that is switched to. Of the experts in `held`, those that come from other ranks have no values yet."""

    placement: Placement
    held: HeldExperts
    expert2place: Mapping[int, torch.Tensor]
    schedule: Schedule


@dataclass(slots=True, kw_only=True)
class LivePlacement:
    """Of one rank: `local` has the experts that `placement` puts here; `bank` and `spread` send rows by it.

    `empty` gives memory without values for an expert, which takes `expert_bytes`; all experts here together may take
    `room_bytes`. `check` raises ConfigError or PlacementError for what this deployment cannot use, on all ranks alike.
    """

    group: Group
    placement: Placement
    local: RankBank
    bank: DispatchedBank
    spread: TensorParallel
    empty: Callable[[int, int], ExpertTensors]
    expert_bytes: Callable[[int, int], int]
    check: Callable[[Placement, str], None]
    make_schedule: Callable[[Placement], Schedule]
    room_bytes: int
    max_bytes: int = MAX_BYTES

    def apply(self, placement: Placement, name: str) -> ExpertsMoved | SmoeError:
        """What came here, or why all ranks stay with the placement that they have. Collective, between two forwards.

        Experts come from ranks that hold them, at most `max_bytes` at a time, into memory beside what is in use; ranks
        switch once each has all of its own. Raises CollectiveError when an exchange fails: this rank has not switched,
        but the ranks are of no use to each other any more.
        """
        try:
            self.check(placement, name)
        except (ConfigError, PlacementError) as error:
            return error
        moves = expert_moves(self.placement, placement)
        sent, got = moves_by_place(moves, self.group.rank, self.group.size)
        arriving_bytes = sum(self._bytes(part) for part in got)
        if (shortage := self._shortage(arriving_bytes, name)) is not None:
            return shortage
        staged = self._try_stage(placement, itertools.chain(*got))
        failed = self._ranks_without(staged)
        if staged is None or failed:
            return PlacementError(f"{name}: rank {failed[0]} could not make ready for it (its log says why)")
        exchange_streams(
            self.group,
            [self._tensors(self.local.held, part) for part in sent],
            [self._tensors(staged.held, part) for part in got],
            "experts",
            longest_bytes=self._longest_bytes(moves),
            max_bytes=self.max_bytes,
        )
        self._ranks_without(staged)  # for its waiting: nobody switches before all have what they need
        self._switch(staged)
        return ExpertsMoved(experts=sum(map(len, got)), nbytes=arriving_bytes)

    def _shortage(self, arriving_bytes: int, name: str) -> CapacityError | None:
        """On all ranks, that of the first one without room for its arriving experts beside those that it has."""
        left_bytes = self.room_bytes - self.local.held.nbytes
        told_G2 = self.group.all_gather(torch.tensor([[arriving_bytes, left_bytes]]), "sizes").tolist()
        for rank, (arriving, left) in enumerate(told_G2):
            if arriving > left:
                wanted = f"rank {rank} gets experts of {arriving:,} bytes beside those that it has"
                return CapacityError(f"{name}: {wanted} ({max(0, left):,} bytes are left)")
        return None

    def _try_stage(self, placement: Placement, arriving: Iterable[ExpertMove]) -> Staged | None:
        try:
            memory = {(move.layer, move.expert): self.empty(move.layer, move.expert) for move in arriving}
            now = self.local.held

            def tensors(layer: int, expert: int) -> ExpertTensors:
                return memory.get((layer, expert)) or now.tensors(layer, expert)

            return Staged(
                placement=placement,
                held=self.local.hold(held_experts(placement, self.group.rank), tensors),
                expert2place=expert_places(placement, self.group.rank),
                schedule=self.make_schedule(placement),
            )
        except Exception:  # of any kind: a rank that left here would keep the others waiting
            log.exception("making ready for another placement")
            return None

    def _ranks_without(self, staged: Staged | None) -> list[int]:
        ready_G = self.group.all_gather(torch.tensor([int(staged is not None)]), "sizes")
        return [rank for rank, ready in enumerate(ready_G.tolist()) if not ready]

    def _switch(self, staged: Staged) -> None:
        self.placement, self.local.held = staged.placement, staged.held
        self.bank.use(staged.expert2place, staged.schedule)
        self.spread.use(staged.schedule)

    def _longest_bytes(self, moves: Iterable[ExpertMove]) -> int:
        """Of what one rank sends to one other."""
        by_pair: dict[tuple[int, int], int] = {}
        for move in moves:
            pair = move.source, move.target
            by_pair[pair] = by_pair.get(pair, 0) + self.expert_bytes(move.layer, move.expert)
        return max(by_pair.values(), default=0)

    def _bytes(self, moves: Iterable[ExpertMove]) -> int:
        return sum(self.expert_bytes(move.layer, move.expert) for move in moves)

    @staticmethod
    def _tensors(held: HeldExperts, moves: Iterable[ExpertMove]) -> list[torch.Tensor]:
        return [tensor for move in moves for tensor in held.tensors(move.layer, move.expert) if tensor is not None]
