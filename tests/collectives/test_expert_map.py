"""Senders, holders and replicas."""

import numpy as np

from smoe.collectives.expert_map import expert_places, held_experts
from smoe.core.placement import Placement

PLACEMENT = Placement(
    fingerprint="f",
    num_experts=4,
    layers=(1, 5),
    slots_of_device=(2, 2, 1),
    # Layer 1: expert 3 on devices 0 and 2; layer 5: expert 0 on devices 0 and 2.
    slot2expert=np.array([[1, 3, 0, 2, 3], [0, 1, 2, 3, 0]], dtype=np.int32),
)


def test_a_rank_holds_what_its_slots_say() -> None:
    assert [held_experts(PLACEMENT, place) for place in range(3)] == [
        {1: [1, 3], 5: [0, 1]},
        {1: [0, 2], 5: [2, 3]},
        {1: [3], 5: [0]},
    ]


def test_rows_stay_where_a_replica_is_and_senders_share_the_others() -> None:
    sends = [{layer: place.tolist() for layer, place in expert_places(PLACEMENT, at).items()} for at in range(3)]
    assert sends[0][1] == [1, 0, 1, 0]
    assert sends[1][1] == [1, 0, 1, 2]  # of the holders 0 and 2, the second sender takes the second
    assert sends[2][1] == [1, 0, 1, 2]
    assert [sends[at][5] for at in range(3)] == [[0, 0, 1, 1], [2, 0, 1, 1], [2, 0, 1, 1]]


def test_every_choice_goes_to_a_rank_that_holds_the_expert() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        experts, devices = int(rng.integers(1, 9)), int(rng.integers(1, 5))
        slots = [set(rng.choice(experts, rng.integers(0, experts + 1), replace=False).tolist()) for _ in range(devices)]
        slots[-1] |= set(range(experts)) - set().union(*slots)
        placement = Placement(
            fingerprint="f",
            num_experts=experts,
            layers=(0,),
            slots_of_device=tuple(len(held) for held in slots),
            slot2expert=np.array([[expert for held in slots for expert in sorted(held)]], dtype=np.int32),
        )
        for at in range(devices):
            for expert, place in enumerate(expert_places(placement, at)[0].tolist()):
                assert expert in slots[place]
                assert place == at or expert not in slots[at]
