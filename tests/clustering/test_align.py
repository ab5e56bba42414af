"""Alignment to chunks: a permutation, no chunk beyond its bound, the surest rows stay."""

import math

import numpy as np
import pytest

from smoe.clustering.align import NO_ROW, align, capacity_of, padded_chunks, permutation

CASES = [(rows, devices, seed) for rows in (0, 1, 5, 8, 64, 257) for devices in (1, 2, 3, 8) for seed in range(3)]


def wishes(rows: int, devices: int, seed: int):  # type: ignore[no-untyped-def]
    chance = np.random.default_rng(seed)
    popularity = chance.dirichlet(np.full(devices, 0.5))
    device = chance.choice(devices, rows, p=popularity).astype(np.int16)
    second = ((device + chance.integers(1, max(2, devices), rows)) % devices).astype(np.int16)
    return device, second, chance.choice(np.array([0.2, 0.5, 0.7, 0.9], np.float16), rows)


@pytest.mark.parametrize(("rows", "devices", "seed"), CASES)
@pytest.mark.parametrize("factor", [1.0, 1.25, 1.5, 2.0])
def test_bounded_whole_and_the_same_again(rows: int, devices: int, seed: int, factor: float) -> None:
    device, second, confidence = wishes(rows, devices, seed)
    capacity = capacity_of(rows, devices, factor)
    placed = align(device, second, confidence, devices, capacity)
    assert placed.dtype == np.int16
    order, sizes = permutation(placed, devices)
    assert sorted(order.tolist()) == list(range(rows))
    assert sizes.max(initial=0) <= capacity
    assert (np.diff(placed[order]) >= 0).all()
    again = align(device.copy(), second.copy(), confidence.copy(), devices, capacity)
    assert placed.tobytes() == again.tobytes()
    for group in range(devices):
        wanted = device == group
        kept, left = wanted & (placed == group), wanted & (placed != group)
        if left.any():
            assert kept.sum() == capacity, "no row leaves a device with room"
            assert confidence[kept].min() >= confidence[left].max()
            for row in np.flatnonzero(left & (placed != second)):
                assert (placed == second[row]).sum() == capacity, "a row passes its second choice only when full"


@pytest.mark.parametrize(("rows", "devices", "seed"), CASES)
def test_nothing_spills_when_the_bound_is_wide(rows: int, devices: int, seed: int) -> None:
    device, second, confidence = wishes(rows, devices, seed)
    assert align(device, second, confidence, devices, max(rows, 1)).tolist() == device.tolist()


def test_nothing_spills_when_the_wishes_are_balanced() -> None:
    device = np.tile(np.arange(4), 16).astype(np.int16)
    assert align(device, (device + 1) % 4, np.zeros(64, np.float16), 4, 16).tolist() == device.tolist()


def test_spill_goes_to_the_second_choice_then_wherever_there_is_room() -> None:
    device = np.zeros(6, np.int16)
    second = np.array([1, 1, 1, 1, 1, 2], np.int16)
    confidence = np.array([0.1, 0.9, 0.5, 0.5, 0.4, 0.3], np.float16)
    assert align(device, second, confidence, 3, 2).tolist() == [2, 0, 0, 1, 1, 2]


def test_equal_rows_keep_row_order() -> None:
    placed = align(np.zeros(4, np.int16), np.ones(4, np.int16), np.full(4, 0.5, np.float16), 2, 2)
    assert placed.tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize(("rows", "devices", "seed"), CASES)
def test_chunks_hold_every_row_once_and_padding_last(rows: int, devices: int, seed: int) -> None:
    device, second, confidence = wishes(rows, devices, seed)
    placed = align(device, second, confidence, devices, capacity_of(rows, devices))
    chunks = padded_chunks(placed, devices)
    assert chunks.shape == (devices, math.ceil(rows / devices))
    assert sorted(chunks[chunks != NO_ROW].tolist()) == list(range(rows))
    for group, chunk in enumerate(chunks.tolist()):
        held = [row for row in chunk if row != NO_ROW]
        assert held == np.flatnonzero(placed == group).tolist()
        assert chunk == held + [NO_ROW] * (len(chunk) - len(held))


@pytest.mark.parametrize(
    ("rows", "devices", "factor", "capacity"),
    [(256, 4, 1.0, 64), (257, 4, 1.0, 65), (256, 4, 1.25, 80), (10, 4, 1.5, 5)],
)
def test_capacity(rows: int, devices: int, factor: float, capacity: int) -> None:
    assert capacity_of(rows, devices, factor) == capacity
