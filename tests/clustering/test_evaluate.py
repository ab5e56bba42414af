"""Evaluation against slow counts, and what it must find on routes made to be found."""

import itertools
import json

import numpy as np
import pytest

from smoe.clustering.batches import FACTORS, mixed_batches, sequence_batches
from smoe.clustering.evaluate import BOTH, CHAIN, EXPERTS, ORACLE, TOKENS, VANILLA, VARIANTS, evaluate
from smoe.clustering.journey import contiguous, follow
from smoe.clustering.lookup import lookup
from smoe.clustering.tables import build_tables
from smoe.core.route_edit import split
from smoe.core.route_trace import RouteTrace
from tests.clustering.routes import drawn, trace_of


def paired(tokens: int = 4000) -> RouteTrace:
    """Token v activates experts v % 8 and v % 8 + 8 in every layer: grouping those pairs makes all local."""
    token_ids = np.random.default_rng(0).integers(0, 40, tokens)
    first = token_ids % 8
    ids = np.broadcast_to(np.stack([first, first + 8], axis=-1), (2, tokens, 2))
    return trace_of(ids, token_ids, experts=16, starts=[*range(0, tokens, 50), tokens])


def paired_placement() -> np.ndarray:
    device = np.arange(16) % 8 // 2
    return np.broadcast_to(device[:, None] == np.arange(4), (2, 16, 4)).copy()


def test_a_perfect_placement_is_found_perfect_and_its_parts_are_told_apart() -> None:
    fit, heldout = split(paired(), 0.8)
    found = evaluate(fit, heldout, paired_placement(), (4, 4, 4, 4))
    mean = found.mean_lar
    assert set(mean) == set(VARIANTS)
    assert mean[BOTH] == mean[CHAIN] == mean[ORACLE] == 1.0
    assert mean[TOKENS] == pytest.approx(0.5), "in order, a token's two experts are on two devices"
    assert mean[VANILLA] == pytest.approx(0.25, abs=0.03)
    assert mean[EXPERTS] == pytest.approx(0.25, abs=0.03)
    assert found.needed_devices == (1.0, 1.0)
    assert found.unseen == 0.0
    assert found.tables["T"].f1 == 1.0
    assert found.tables["T"].calibration_error < 0.01
    assert found.load_imbalance == pytest.approx(found.token_imbalance), "all local: tokens are the load"
    by_schedule = {each.schedule: each for each in found.traffic}
    assert by_schedule["allreduce"].counted == pytest.approx(9 + 4 * (1 - by_schedule["allreduce"].lar))
    assert by_schedule["speculative"].counted < by_schedule["scatter"].counted < by_schedule["allreduce"].counted


def test_report_is_json() -> None:
    fit, heldout = split(drawn(), 0.8)
    body = json.loads(json.dumps(evaluate(fit, heldout, contiguous(3, (4, 4)), (4, 4)).as_json()))
    assert len(body["lar"][BOTH]) == 3
    assert body["mean_lar"][BOTH] == pytest.approx(sum(body["lar"][BOTH]) / 3)


def test_lar_equals_a_slow_count() -> None:
    fit, heldout = split(drawn(1200), 0.7)
    on_device = contiguous(3, (2, 2, 2, 2)).copy()
    on_device[:] = on_device[:, np.random.default_rng(4).permutation(8)]
    on_device[1, 0] = True  # a replica everywhere
    tables = build_tables(fit, on_device)
    found = evaluate(fit, heldout, on_device, (2, 2, 2, 2), tables=tables)
    where = [[4] * heldout.num_tokens, [4] * heldout.num_tokens]
    for layer in range(3):
        came = best = 0
        now = []
        for token in range(heldout.num_tokens):
            ids = heldout.expert_ids[layer, token]
            counts = [sum(on_device[layer, e, g] for e in ids) for g in range(4)]
            wish = lookup(
                tables,
                layer,
                heldout.token_ids[token : token + 1],
                np.array([where[layer][token]]),
                np.array([where[layer + 1][token]]),
            )
            came += counts[int(wish.device[0])]
            best += max(counts)
            now.append(int(np.argmax(counts)))
        where.append(now)
        assert found.lar[CHAIN][layer] == pytest.approx(came / (2 * heldout.num_tokens))
        assert found.lar[ORACLE][layer] == pytest.approx(best / (2 * heldout.num_tokens))


def test_alignment_bounds_devices_and_costs_locality() -> None:
    fit, heldout = split(drawn(6000, length=128), 0.7)
    found = evaluate(fit, heldout, contiguous(3, (2, 2, 2, 2)), (2, 2, 2, 2))
    for kind in ("mixed", "one sequence"):
        by_factor = {each.factor: each for each in found.aligned if each.batches == kind}
        assert set(by_factor) == {None, *FACTORS}
        lars = [by_factor[factor].mean_lar for factor in (*FACTORS, None)]
        assert all(less < more + 0.005 for less, more in itertools.pairwise(lars))
        assert lars[0] < lars[-1] - 0.02
        assert by_factor[None].imbalance_after == by_factor[None].imbalance_before
        for factor in FACTORS:
            assert by_factor[factor].imbalance_after <= factor + 0.1


def test_batches_hold_each_token_once_and_stay_in_their_sequence() -> None:
    trace = drawn(1000, length=130)
    mixed = mixed_batches(trace, 64, most=100)
    assert len(np.unique(np.concatenate(mixed))) == sum(len(batch) for batch in mixed)
    assert all(len(batch) == 64 for batch in mixed[:-1])
    sequence = np.repeat(np.arange(trace.num_sequences), np.diff(trace.sequence_start))
    consecutive = sequence_batches(trace, 64, most=100)
    assert all(len(batch) >= 16 for batch in consecutive)
    for batch in consecutive:
        assert len(set(sequence[batch].tolist())) == 1
        assert (np.diff(batch) == 1).all()
    assert len(sequence_batches(trace, 64, most=5)) == 5


def test_a_trace_without_token_ids_is_judged_by_devices_and_history() -> None:
    trace = drawn(3000)
    blind = trace_of(trace.expert_ids, np.full(3000, -1), experts=8, starts=trace.sequence_start.tolist())
    fit, heldout = split(blind, 0.7)
    found = evaluate(fit, heldout, contiguous(3, (4, 4)), (4, 4))
    assert found.unseen == 1.0
    assert found.tables["A decides"].decides == 1.0
    assert found.mean_lar[ORACLE] > found.mean_lar[CHAIN]


def test_follow_names_the_devices_before() -> None:
    journey = follow(paired(100), paired_placement())
    before2, before1 = journey.before(1)
    assert before2.tolist() == [4] * 100
    assert before1.tolist() == (paired(100).token_ids % 8 // 2).tolist()
