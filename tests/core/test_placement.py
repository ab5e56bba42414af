"""The rules of a placement, and what code makes of one."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from smoe.core.errors import PlacementError
from smoe.core.placement import Placement, check_fits
from smoe.core.placement_build import contiguous, even_slots, from_expert_device, relabel_devices, with_replicas
from smoe.core.placement_maps import computing_device, device2experts, diff, expert2slots
from tests.core.placements import DEVICES, EXPERTS, LAYERS, SLOTS, VOCAB, placement, tables

PLAIN = contiguous(fingerprint="abc", num_experts=6, layers=(0, 3), num_devices=3)


def with_value(array: Any, at: Any, value: Any) -> Any:
    copy = array.copy()
    copy[at] = value
    return copy


def slots(at: Any, value: Any) -> dict[str, Any]:
    return {"slot2expert": with_value(PLAIN.slot2expert, at, value)}


BROKEN: list[tuple[dict[str, Any], str]] = [
    ({"num_experts": 0}, "num_experts: 0 (at least 1)"),
    ({"layers": ()}, "layers: [] (one or more"),
    ({"layers": (3, 0)}, "layers: [3, 0] (one or more, ascending"),
    ({"layers": (3, 3)}, "layers: [3, 3]"),
    ({"layers": (-1, 3)}, "layers: [-1, 3]"),
    ({"slots_of_device": ()}, "slots_of_device: 0 devices"),
    ({"slots_of_device": (6, 0)}, "slots_of_device[1]: 0 (1 to the 6 experts"),
    ({"slots_of_device": (7, 1)}, "slots_of_device[0]: 7 (1 to the 6 experts, as none is twice"),
    ({"slots_of_device": (2, 2, 1)}, "slots_of_device: 5 slots (at least one for each of 6"),
    ({"slots_of_device": (2, 2, 3)}, "slot2expert: shape [2, 6] (expected [2, 7])"),
    ({"slot2expert": PLAIN.slot2expert.astype(np.int64)}, "slot2expert: dtype int64 (expected int32)"),
    ({"slot2expert": PLAIN.slot2expert[:1]}, "slot2expert: shape [1, 6] (expected [2, 6])"),
    (slots((1, 4), 6), "layer 3: slot2expert[4]: 6 (an expert, 0 to 5)"),
    (slots((0, 1), -1), "layer 0: slot2expert[1]: -1 (an expert"),
    (slots((1, 4), 0), "layer 3: expert 4 has no slot"),
    (
        {
            "slots_of_device": (2, 3, 2),
            "slot2expert": np.array([[0, 1, 2, 3, 0, 4, 5], [0, 1, 2, 3, 2, 4, 5]], dtype=np.int32),
        },
        "layer 3: expert 2 is in slots [2, 4] of device 1 (at most one a device)",
    ),
]


@pytest.mark.parametrize(("changes", "message"), BROKEN)
def test_what_breaks_a_rule_is_named(changes: dict[str, Any], message: str) -> None:
    PLAIN.validate()
    with pytest.raises(PlacementError, match=re.escape(f"folder: {message}")):
        replace(PLAIN, **changes).validate("folder")


GOOD = tables()
BROKEN_TABLES: list[tuple[dict[str, Any], str]] = [
    ({"token_device": GOOD.token_device.astype(np.int32)}, "token_device: dtype int32 (expected int16)"),
    ({"token_confidence": GOOD.token_confidence[:, 1:]}, "token_confidence: shape [3, 10] (expected [3, 11])"),
    ({"token_device": GOOD.token_device[:2]}, "token_device: shape [2, 11] (expected [3, 11])"),
    ({"token_device": GOOD.token_device[0]}, "token_device: shape [11] (expected [3, 0])"),
    ({"chain_device": GOOD.chain_device[:, 1:]}, "chain_device: shape [3, 3, 4] (expected [3, 4, 4])"),
    ({"token_device": with_value(GOOD.token_device, (2, 4), 3)}, "layer 5: token_device[4]: 3 (a device, 0 to 2)"),
    ({"token_second": with_value(GOOD.token_second, (0, 9), -1)}, "layer 1: token_second[9]: -1 (a device"),
    ({"token_second": with_value(GOOD.token_second, (1, 3), GOOD.token_device[1, 3])}, "layer 2: token_second[3]: "),
    ({"chain_device": with_value(GOOD.chain_device, (1, 3, 2), 3)}, "layer 2: chain_device[3, 2]: 3"),
    ({"token_confidence": with_value(GOOD.token_confidence, (1, 2), np.nan)}, "layer 2: token_confidence[2]: nan"),
    (
        {"token_confidence": with_value(GOOD.token_confidence, (1, 2), 1.5)},
        "token_confidence[2]: 1.5 (a share, 0 to 1)",
    ),
    ({"chain_confidence": with_value(GOOD.chain_confidence, (0, 0, 1), -0.5)}, "layer 1: chain_confidence[0, 1]: -0.5"),
    (
        {"chain_confidence": with_value(GOOD.chain_confidence, (0, 0, 1), np.inf)},
        "layer 1: chain_confidence[0, 1]: inf",
    ),
]


@pytest.mark.parametrize(("changes", "message"), BROKEN_TABLES)
def test_what_breaks_a_rule_of_the_tables_is_named(changes: dict[str, Any], message: str) -> None:
    placement().validate()
    with pytest.raises(PlacementError, match=re.escape(message)):
        placement(tables=replace(GOOD, **changes)).validate("folder")


def test_one_device_has_no_second() -> None:
    one = contiguous(fingerprint="", num_experts=4, layers=(0,), num_devices=1)
    none = np.zeros((1, 5), dtype=np.int16)
    chain = np.zeros((1, 2, 2), dtype=np.int16)
    shares = {"token_confidence": none.astype(np.float16), "chain_confidence": chain.astype(np.float16)}
    single = replace(GOOD, token_device=none, token_second=none, chain_device=chain, **shares)
    replace(one, tables=single).validate()


def test_contiguous_is_in_order_and_as_even_as_can_be() -> None:
    assert [even_slots(8, g) for g in (1, 3, 4, 8)] == [(8,), (3, 3, 2), (2, 2, 2, 2), (1,) * 8]
    made = contiguous(fingerprint="f", num_experts=8, layers=(0, 1), num_devices=3)
    assert device2experts(made) == [[[0, 1, 2], [3, 4, 5], [6, 7]]] * 2
    assert made.expert2device.tolist() == [[0, 0, 0, 1, 1, 1, 2, 2]] * 2
    for devices in (0, 9):
        with pytest.raises(PlacementError, match=rf"devices: {devices} \(1 to the 8 experts"):
            contiguous(fingerprint="f", num_experts=8, layers=(0,), num_devices=devices)


def test_groups_come_back_as_they_went_in() -> None:
    groups = placement().expert2device
    made = from_expert_device(groups, SLOTS, fingerprint="abc", layers=LAYERS)
    assert np.array_equal(made.expert2device, groups)
    assert all(experts == sorted(experts) for layer in device2experts(made) for experts in layer)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([[0, 0, 1], [0, 1, 1]], "layer 4: [1, 2] experts on the devices (slots_of_device = [2, 1])"),
        ([[0, 0, 1], [0, 2, 1]], "layer 4: expert 1: device 2 (0 to 1)"),
        ([[0, 0, -1], [0, 1, 1]], "layer 0: expert 2: device -1 (0 to 1)"),
        ([[0, 0, 1]], "expert_device: 1 layers (expected 2)"),
    ],
)
def test_groups_that_are_none(groups: list[list[int]], message: str) -> None:
    with pytest.raises(PlacementError, match=re.escape(message)):
        from_expert_device(np.array(groups), (2, 1), fingerprint="", layers=(0, 4))


def replicated() -> Placement:
    """Two layers of six experts on three devices, with a copy on the first and the last."""
    return with_replicas(PLAIN, [[[5], [], [0]], [[2], [], [1]]])


def test_copies_come_behind_what_a_device_has() -> None:
    made = replicated()
    assert made.slots_of_device == (3, 2, 3)
    assert device2experts(made) == [[[0, 1, 5], [2, 3], [4, 5, 0]], [[0, 1, 2], [2, 3], [4, 5, 1]]]
    assert made.on_device[0].sum(axis=1).tolist() == [2, 1, 1, 1, 1, 2]
    assert np.array_equal(made.expert2device[0], [0, 0, 1, 1, 2, 0]), "the first device, not the first owner"


@pytest.mark.parametrize(
    ("copies", "message"),
    [
        ([[[5], [], [0]], [[2], [], [4]]], "layer 3: expert 4 is in slots [5, 7] of device 2"),
        (
            [[[5], [], [0]], [[2], [1], []]],
            "layer 3: [1, 1, 0] copies on the devices (as in the first layer: [1, 0, 1])",
        ),
        ([[[5], [], [0]]], "copies: 1 layers of 3 devices (expected 2 layers of 3 devices)"),
        ([[[5], [0]]] * 2, "copies: 2 layers of 2 devices"),
    ],
)
def test_copies_that_do_not_fit(copies: list[list[list[int]]], message: str) -> None:
    with pytest.raises(PlacementError, match=re.escape(message)):
        with_replicas(PLAIN, copies)


def test_maps_by_expert_are_the_inverse_of_the_slots() -> None:
    for made in (PLAIN, replicated(), placement()):
        slots, count = expert2slots(made)
        assert slots.dtype == count.dtype == np.int32
        assert slots.shape[2] == count.max()
        for row in range(len(made.layers)):
            for expert in range(made.num_experts):
                expected = np.flatnonzero(made.slot2expert[row] == expert).tolist()
                assert count[row, expert] == len(expected)
                assert slots[row, expert].tolist() == expected + [-1] * (slots.shape[2] - len(expected))


def test_rows_are_computed_at_home_or_dealt_to_the_holders() -> None:
    held = np.zeros((3, 5), dtype=bool)
    held[0, 3] = held[1, [0, 2]] = held[2, [1, 2, 4]] = True
    found = computing_device(held)
    assert found.dtype == np.int16
    assert found.tolist() == [[3, 3, 3, 3, 3], [0, 2, 2, 2, 0], [1, 1, 2, 1, 4]]
    assert np.array_equal(computing_device(np.stack([held, held]))[1], found)
    made = placement()
    assert (computing_device(made.on_device) == made.expert2device[:, :, None]).all(), "without copies there is one"


def test_renamed_devices_hold_what_they_held() -> None:
    """By definition: whatever is said of device g is said of its new name afterwards, in slots and in tables."""
    before = placement()
    assert before.tables is not None
    new = np.array([[0, 2, 1], [0, 1, 2], [0, 2, 1]])  # the first device has a slot more than the others
    after = relabel_devices(before, new)
    after.validate()
    assert after.tables is not None
    for row in range(len(LAYERS)):
        for old in range(DEVICES):
            assert device2experts(after)[row][new[row, old]] == device2experts(before)[row][old]
        for field in ("token_device", "token_second"):
            for token in range(VOCAB):
                assert getattr(after.tables, field)[row, token] == new[row, getattr(before.tables, field)[row, token]]
        assert np.array_equal(after.tables.token_confidence, before.tables.token_confidence)
        for two in range(DEVICES + 1):
            for one in range(DEVICES + 1):
                at = (
                    row,
                    new[row - 2, two] if row >= 2 and two < DEVICES else two,
                    new[row - 1, one] if row >= 1 and one < DEVICES else one,
                )
                assert after.tables.chain_device[at] == new[row, before.tables.chain_device[row, two, one]]
                assert after.tables.chain_confidence[at] == before.tables.chain_confidence[row, two, one]


@pytest.mark.parametrize(
    ("new", "message"),
    [
        ([[1, 0, 2]] * 3, r"layer 1: new_device: [1, 0, 2] (a permutation of the devices that keeps slots_of_device"),
        ([[0, 1, 2], [0, 1, 1], [0, 1, 2]], "layer 2: new_device: [0, 1, 1] (a permutation"),
        ([[0, 1, 2]] * 2, "new_device: shape [2, 3] (expected [3, 3])"),
    ],
)
def test_devices_that_cannot_trade_places(new: list[list[int]], message: str) -> None:
    with pytest.raises(PlacementError, match=re.escape(message)):
        relabel_devices(placement(), np.array(new))


def test_the_difference_counts_what_has_to_be_fetched() -> None:
    assert diff(PLAIN, PLAIN).fetched == 0
    swapped = replace(PLAIN, slot2expert=with_value(PLAIN.slot2expert, (1, slice(1, 3)), [2, 1]))
    change = diff(PLAIN, swapped, expert_bytes=10)
    assert [(c.layer, c.fetched, c.dropped) for c in change.layers] == [(0, 0, 0), (3, 2, 2)]
    assert change.fetched_by_device == (1, 1, 0)
    assert (change.bytes_moved, change.holdings) == (20, 12)
    more = diff(PLAIN, replicated())
    assert [(c.fetched, c.dropped) for c in more.layers] == [(2, 0), (2, 0)]
    assert more.bytes_moved is None
    reordered = replace(PLAIN, slot2expert=with_value(PLAIN.slot2expert, (1, slice(0, 2)), [1, 0]))
    assert diff(PLAIN, reordered).fetched == 0, "another slot of the same device is no move over a link"


def test_the_difference_between_numbers_of_devices() -> None:
    two = contiguous(fingerprint="abc", num_experts=6, layers=(0, 3), num_devices=2)
    assert diff(PLAIN, two).fetched_by_device == (2, 4)
    assert diff(two, PLAIN).fetched_by_device == (0, 2, 4)


def test_the_difference_of_two_models() -> None:
    with pytest.raises(PlacementError, match=r"fingerprint: 'other' \(the other placement has 'abc'"):
        diff(PLAIN, replace(PLAIN, fingerprint="other"))
    with pytest.raises(PlacementError, match=r"layers: \(0, 4\) \(the other placement has \(0, 3\)"):
        diff(PLAIN, replace(PLAIN, layers=(0, 4)))


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"fingerprint": "xyz"}, "fingerprint: 'abc' (the model's is 'xyz')"),
        ({"num_experts": 8}, "num_experts: 7 (the model's layers have 8)"),
        ({"layers": (1, 2)}, "layers: [1, 2, 5] (the model's MoE layers are [1, 2])"),
        ({"vocab_size": 10}, "tables of 11 token ids (the model's vocabulary has 10)"),
    ],
)
def test_a_placement_of_another_model(facts: dict[str, Any], message: str) -> None:
    own: dict[str, Any] = {"num_experts": EXPERTS, "layers": LAYERS, "fingerprint": "abc", "vocab_size": VOCAB}
    check_fits(placement(), **own)
    check_fits(placement(), **(own | {"vocab_size": 12}))
    check_fits(placement(tables=None), num_experts=EXPERTS, layers=list(LAYERS))
    with pytest.raises(PlacementError, match=re.escape(message)):
        check_fits(placement(), **(own | facts))
