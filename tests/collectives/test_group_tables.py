"""Tables over all devices, for rows that stay within one tensor-parallel group."""

import numpy as np
import pytest
import torch

from smoe.collectives.group import Group
from smoe.collectives.schedules.group_tables import within_group
from smoe.collectives.schedules.protocol import StepRows
from smoe.collectives.schedules.speculative import Speculative
from smoe.core.placement import RoutingTables
from tests.collectives.tables import make_tables
from tests.collectives.thread_group import run_groups


def one_layer(first: list[int], second: list[int], confidence: list[float], chain: int = 0) -> RoutingTables:
    """Over four devices; the chain leads to `chain` with confidence 0.25 whatever came before."""
    return RoutingTables(
        token_device=np.array([first], dtype=np.int16),
        token_second=np.array([second], dtype=np.int16),
        token_confidence=np.array([confidence], dtype=np.float16),
        chain_device=np.full((1, 5, 5), chain, dtype=np.int16),
        chain_confidence=np.full((1, 5, 5), 0.25, dtype=np.float16),
    )


def test_devices_elsewhere_give_way_to_second_ones_and_then_to_even_shares() -> None:
    found = within_group(one_layer([2, 3, 0, 1, 0, 1], [3, 0, 3, 0, 1, 0], [0.5] * 6, chain=1), ranks=(2, 3))
    assert found.token_device[0].tolist() == [0, 1, 1, 1, 0, 1]  # ids 3, 4 and 5 know of no device here: 3, 4, 5 mod 2
    assert found.token_second[0].tolist() == [1, 0, 0, 0, 1, 0]
    assert found.token_confidence[0].tolist() == [0.5, 0.5, 0.0, 0.0, 0.0, 0.0]
    assert set(found.chain_confidence.flatten().tolist()) == {-1.0}
    assert set(found.chain_device.flatten().tolist()) == {0, 1}
    inside = within_group(one_layer([2], [3], [0.5], chain=3), ranks=(2, 3))
    assert set(inside.chain_device.flatten().tolist()) == {1}
    assert set(inside.chain_confidence.flatten().tolist()) == {0.25}


@pytest.mark.parametrize("ranks", [(0, 1), (2, 3), (3,), (1, 2, 3)])
def test_places_are_those_of_the_group_and_two_wishes_differ(ranks: tuple[int, ...]) -> None:
    tables = make_tables(4, vocab=90, layers=2)
    found = within_group(tables, ranks)
    for device in (found.token_device, found.token_second, found.chain_device):
        assert device.min() >= 0
        assert device.max() < len(ranks)
    assert len(ranks) == 1 or not (found.token_device == found.token_second).any()
    here = np.isin(tables.token_device, ranks)
    assert (np.array(ranks)[found.token_device] == tables.token_device)[here].all()
    assert (found.token_confidence == np.where(here, tables.token_confidence, 0)).all()
    for name in ("token_device", "token_second", "token_confidence", "chain_device", "chain_confidence"):
        before, after = getattr(tables, name), getattr(found, name)
        assert (after.dtype, after.shape) == (before.dtype, before.shape), name


def rows_of_ranks(tables: RoutingTables, token_ids: list[int], factor: float) -> list[list[int]]:
    """By rank of two groups of two, which of the rows it works on; every row's residual is its number."""

    def body(everyone: Group, own: Group) -> list[int]:
        schedule = Speculative(own, tables, (0,), capacity_factor=factor)
        schedule.begin_step(StepRows(token_ids_T=torch.tensor(token_ids)))
        number_T1 = torch.arange(len(token_ids), dtype=torch.float32).unsqueeze(1)
        rows_R1 = schedule.reduce(0, torch.zeros_like(number_T1), number_T1)
        # Experts on devices outside the group are history like any others.
        schedule.note_devices(0, torch.full((len(rows_R1), 2), 3 - everyone.rank))
        gathered_T1 = schedule.gather(0, rows_R1)
        assert torch.equal(gathered_T1, number_T1)
        assert schedule._history is not None
        seen_T = schedule._history[1]
        assert set(seen_T[rows_R1.flatten().long()].tolist()) <= {3 - everyone.rank}
        assert len(seen_T) == len(token_ids)
        return sorted(rows_R1.flatten().int().tolist())

    return run_groups(2, 2, body)


def test_each_group_shares_its_own_rows_by_the_devices_in_it() -> None:
    tables = one_layer([0, 1, 2, 3], [1, 0, 3, 2], [0.5] * 4, chain=0)
    found = rows_of_ranks(tables, [0, 1, 2, 3, 1, 3], factor=2.0)
    # Group 0 knows tokens 0 and 1, and the chain sends the others to device 0; group 1 spreads those by their ids.
    assert found[:2] == [[0, 2, 3, 5], [1, 4]]
    assert found[2:] == [[0, 2], [1, 3, 4, 5]]


def test_before_the_first_layer_a_row_was_nowhere_and_unknown_ids_stay_in_the_group() -> None:
    tables = one_layer([0], [1], [0.0], chain=0)
    tables.chain_device[0, 4, 4] = 1
    assert rows_of_ranks(tables, [9, 8, 7], factor=2.0)[:2] == [[], [0, 1, 2]]


@pytest.mark.parametrize("rows", [0, 1, 2, 5, 9])
def test_shares_are_even_with_capacity_one_and_ids_may_be_unknown(rows: int) -> None:
    tables = make_tables(4, vocab=4, layers=1)  # ids from 4 on are in no table
    found = rows_of_ranks(tables, list(range(rows)), factor=1.0)
    for group in (found[:2], found[2:]):
        assert sorted(group[0] + group[1]) == list(range(rows))
        assert max(map(len, group)) <= -(-rows // 2)
