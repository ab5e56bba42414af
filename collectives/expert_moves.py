"""Which experts go from rank to rank when one placement takes the place of another."""

from collections.abc import Iterable
from dataclasses import dataclass

from smoe.core.placement import Placement
from smoe.core.placement_maps import computing_device


@dataclass(frozen=True, slots=True)
class ExpertMove:
    """`layer` is a decoder layer; `source` and `target` are places."""

    layer: int
    expert: int
    source: int
    target: int


def expert_moves(before: Placement, after: Placement) -> list[ExpertMove]:
    """What each place has in `after` and lacks in `before`, the same list on every rank: by layer, expert and target.

    From the holder that has computed the expert for the target, so that targets are spread over the holders. Both
    placements are of one model and as many devices.
    """
    held = before.on_device
    sources = computing_device(held)
    return [
        ExpertMove(after.layers[index], int(expert), int(sources[index, expert, target]), int(target))
        for index, expert, target in zip(*(after.on_device & ~held).nonzero(), strict=True)
    ]


def moves_by_place(moves: Iterable[ExpertMove], place: int, size: int) -> tuple[list[list[ExpertMove]], ...]:
    """What `place` sends to each of `size` places, and what it gets from each, in the order of `moves`."""
    sent: list[list[ExpertMove]] = [[] for _ in range(size)]
    got: list[list[ExpertMove]] = [[] for _ in range(size)]
    for move in moves:
        if move.source == place:
            sent[move.target].append(move)
        if move.target == place:
            got[move.source].append(move)
    return sent, got
