"""Tables T and A: what they count, how sure they are, their sizes."""

import numpy as np
import pytest

from smoe.clustering.chain import ENOUGH, Rival, against, history_table
from smoe.clustering.groups import group_tokens
from smoe.clustering.local import held_by, local_counts, majority
from smoe.clustering.lookup import lookup
from smoe.clustering.shrink import WEAKEST, expected_shares, fit_strength
from smoe.clustering.tables import best_two, build_tables, seen_ids, token_table
from smoe.core.errors import ConfigError
from smoe.core.route_edit import split
from tests.clustering.routes import contiguous, drawn, trace_of


def test_counts_by_device_and_the_majority_with_ties_to_the_lowest_id() -> None:
    held = held_by(np.array([0, 0, 1, 1, 2, 2]), 3)
    local = local_counts(np.array([[0, 1, 4], [5, 3, 1], [4, 5, 2]]), held)
    assert local.tolist() == [[2, 0, 1], [1, 1, 1], [0, 1, 2]]
    assert majority(local).tolist() == [0, 0, 2]


def test_an_activation_is_local_on_every_device_with_a_replica() -> None:
    held = held_by(np.array([0, 0, 1, 1]), 2)
    held[0, 1] = True
    assert local_counts(np.array([[0, 2], [0, 1]]), held).tolist() == [[1, 2], [2, 1]]


def test_groups_cut_the_trace_by_token_then_sequence() -> None:
    trace = trace_of(np.zeros((1, 6, 1), int), [5, 2, 5, -1, 2, 5], experts=2, starts=[0, 3, 6])
    groups = group_tokens(trace)
    assert groups is not None
    assert groups.token_ids.tolist() == [2, 5]
    assert groups.occurrences.tolist() == [2, 3]
    assert groups.rows.tolist() == [1, 4, 0, 2, 5]
    assert groups.pair_occurrences.tolist() == [1, 1, 2, 1]
    values = np.arange(12).reshape(6, 2)
    pairs = groups.pair_sums(values)
    assert pairs.tolist() == [[2, 3], [8, 9], [4, 6], [10, 11]]
    assert groups.token_sums(pairs).tolist() == [[10, 12], [14, 17]]


def test_a_trace_without_ids_has_no_groups_and_goes_by_the_mean() -> None:
    trace = trace_of(np.array([[[2], [2], [0]]]), [-1, -1, -1], experts=4)
    assert group_tokens(trace) is None
    tables = build_tables(trace, contiguous(1, 4, 2), vocab_size=3)
    assert tables.token_device[0].tolist() == [1, 1, 1]
    assert tables.token_second[0].tolist() == [0, 0, 0]
    assert tables.token_confidence[0] == pytest.approx([2 / 3] * 3, abs=1e-3)


def test_strength_is_high_where_a_tokens_past_tells_nothing_and_low_where_it_tells_all() -> None:
    chance = np.random.default_rng(0)
    token_ids = np.repeat(np.arange(50), 40)
    starts = [*range(0, 2000, 8), 2000]
    order = chance.permutation(2000)
    held = held_by(np.array([0, 0, 1, 1]), 2)
    faithful, fickle = (token_ids % 4)[order], chance.integers(0, 4, 2000)
    found = []
    for chosen in (faithful, fickle):
        trace = trace_of(chosen[None, :, None], token_ids[order], experts=4, starts=starts)
        groups, local = group_tokens(trace), local_counts(trace.expert_ids[0], held)
        assert groups is not None
        pairs = groups.pair_sums(local)
        found.append(fit_strength(groups, pairs, groups.token_sums(pairs), local.mean(axis=0), 1))
    assert found[0] < 1.1 * WEAKEST
    assert found[1] >= 256


def test_a_token_met_in_one_sequence_only_is_not_believed_for_its_number_there() -> None:
    """Each token of the trace lives in one sequence, so nothing tells that tokens keep their ways."""
    trace = trace_of(np.repeat([0, 3], 50)[None, :, None], np.repeat([0, 1], 50), experts=4, starts=[0, 50, 100])
    groups = group_tokens(trace)
    assert groups is not None
    local = local_counts(trace.expert_ids[0], contiguous(1, 4, 2)[0])
    table = token_table(groups, local, local.mean(axis=0), 1)
    assert table.confidence.max() < 0.51
    assert (table.rival.confidence == 0.5).all()


def test_rival_never_saw_the_tokens_own_sequence() -> None:
    chosen, token_ids = np.array([0, 0, 3, 3, 3, 0]), [7, 7, 7, 7, 7, 7]
    trace = trace_of(chosen[None, :, None], token_ids, experts=4, starts=[0, 2, 5, 6])
    groups = group_tokens(trace)
    assert groups is not None
    local = local_counts(trace.expert_ids[0], contiguous(1, 4, 2)[0])
    table = token_table(groups, local, np.array([0.5, 0.5]), 1)
    # Without it, sequence 0 leaves three on device 1 and one on 0; 1 leaves three on 0; 2 leaves two and three.
    assert table.rival.device.tolist() == [1, 1, 0, 0, 0, 1]
    expected = expected_shares(np.array([[1, 3]]), np.array([4.0]), np.array([0.5, 0.5]), table.strength)
    assert table.rival.confidence[0] == pytest.approx(expected[0, 1])


def test_confidences_are_calibrated_on_texts_not_counted_where_raw_shares_are_not() -> None:
    fit, held = drawn(900, vocab=300, seed=1), drawn(8000, vocab=300, seed=2)
    on_device = contiguous(3, 8, 4)
    tables = build_tables(fit, on_device, vocab_size=300)
    groups = group_tokens(fit)
    assert groups is not None
    for layer in range(3):
        local = local_counts(held.expert_ids[layer], on_device[layer])
        counts = groups.token_sums(groups.pair_sums(local_counts(fit.expert_ids[layer], on_device[layer])))
        raw = np.zeros((300, 4))
        raw[groups.token_ids] = counts / (groups.occurrences * 2.0)[:, None]
        rows = np.arange(held.num_tokens)
        happened = local[rows, tables.token_device[layer, held.token_ids]].mean() / 2
        happened_raw = local[rows, raw.argmax(axis=1)[held.token_ids]].mean() / 2
        said = tables.token_confidence[layer, held.token_ids].mean(dtype=float)
        said_raw = raw.max(axis=1)[held.token_ids].mean()
        assert abs(said - happened) < 0.025
        assert said_raw - happened_raw > 0.04


def test_history_counts_the_last_two_devices_and_falls_back_on_the_last() -> None:
    before2, before1 = np.array([0, 0, 1, 1] * 200, np.int16), np.array([0, 1, 0, 1] * 200, np.int16)
    to = np.array([0, 1, 1, 0] * 200)
    local = np.eye(2, dtype=np.uint8)[to]
    history = history_table(local, before2, before1, 1)
    assert history.device[:2, :2].tolist() == [[0, 1], [1, 0]]
    assert history.share[:2, :2].min() > 0.9
    assert history.share[2, 0] == pytest.approx(0.5)
    only_last = history_table(local, np.zeros(800, np.int16), to.astype(np.int16), 1)
    assert only_last.device[1].tolist()[:2] == [0, 1]  # two layers before never met
    assert only_last.share[2, :2].min() > 0.9


def test_table_a_lets_the_token_decide_where_it_knows_better() -> None:
    """Half of the tokens are known to T for certain, of the others it knows nothing and says 0.6."""
    count = 4 * ENOUGH
    state = np.zeros(count, np.int16)
    to = np.arange(count) % 2
    known = np.arange(count) % 4 < 2
    local = np.eye(2, dtype=np.uint8)[np.where(known, to, 1)]
    rival = Rival(device=np.where(known, to, 0), confidence=np.where(known, 0.8, 0.6))
    history = history_table(local, state, state, 1)
    assert 0.7 < history.share[0, 0] < 0.8
    device, confidence = against(rival, history, local, state, state)
    assert (int(device[0, 0]), float(confidence[0, 0])) == (1, pytest.approx(0.7))
    assert confidence[1, 1] == history.share[1, 1], "a history never met keeps A's expected share"


def test_table_a_takes_all_or_nothing_where_that_is_best_and_always_the_unknown() -> None:
    count = 2 * ENOUGH
    state = np.zeros(count, np.int16)
    local = np.eye(2, dtype=np.uint8)[np.ones(count, int)]
    history = history_table(local, state, state, 1)
    wrong = Rival(device=np.zeros(count, int), confidence=np.linspace(0.3, 0.9, count))
    device, confidence = against(wrong, history, local, state, state)
    assert (int(device[0, 0]), float(confidence[0, 0])) == (1, pytest.approx(0.9))
    unsure = np.where(np.arange(count) < ENOUGH, -1.0, 0.4)
    right = Rival(device=np.ones(count, int), confidence=unsure)
    local[:ENOUGH] = [1, 0]
    device, confidence = against(right, history, local, state, state)
    assert device[0, 0] == 0, "unknown ids go by A"
    assert confidence[0, 0] < 0.4, "T has the others"


def test_both_tables_keep_more_local_than_t_alone() -> None:
    """Half of the ids have ways of their own; the others stay where they were in the layer before."""
    chance = np.random.default_rng(0)
    token_ids, mood = chance.integers(0, 20, 8000), chance.integers(0, 4, 8000)
    chosen = np.where(token_ids < 10, token_ids % 4, mood)
    trace = trace_of(np.stack([mood, chosen])[..., None], token_ids, experts=4, starts=[*range(0, 8000, 20), 8000])
    fit, held = split(trace, 0.7)
    on_device = contiguous(2, 4, 4)
    tables = build_tables(fit, on_device)
    none = np.full(held.num_tokens, 4, np.int16)
    before1 = held.expert_ids[0, :, 0]
    by_token, both = (
        (lookup(tables, 1, held.token_ids, none, before1, chain=chain).device == held.expert_ids[1, :, 0]).mean()
        for chain in (False, True)
    )
    assert 0.55 < by_token < 0.7
    assert both > 0.97


def test_size_of_the_tables_of_a_model_like_deepseek_v2() -> None:
    trace = trace_of(np.zeros((60, 1, 1), int), [5], experts=8)
    tables = build_tables(trace, contiguous(60, 8, 8), vocab_size=102_400)
    assert tables.token_device.nbytes / 2**20 == pytest.approx(11.72, abs=0.005)
    assert tables.chain_device[0].size == 9 * 9
    for array in (tables.token_device, tables.token_second, tables.chain_device):
        assert array.dtype == np.int16
    for array in (tables.token_confidence, tables.chain_confidence):
        assert array.dtype == np.float16


def test_unseen_ids_copy_the_nearest_seen_row() -> None:
    trace = trace_of(np.array([[[0], [3], [0], [3]] * 5]), [1, 3] * 10, experts=4, starts=[0, 10, 20])
    embedding = np.array([[0.1, 2.0], [3.0, 0.0], [5.0, 0.2], [0.0, 1.0]])
    tables = build_tables(trace, contiguous(1, 4, 2), embedding=embedding)
    assert tables.token_device[0].tolist() == [1, 0, 0, 1]
    assert tables.token_confidence[0, 0] == tables.token_confidence[0, 3]
    assert seen_ids(trace).tolist() == [1, 3]


def test_vocabulary_and_embedding_must_fit_the_trace() -> None:
    trace = trace_of(np.zeros((1, 2, 1), int), [1, 9], experts=4)
    with pytest.raises(ConfigError, match=r"vocab_size: 9 \(above 9"):
        build_tables(trace, contiguous(1, 4, 2), vocab_size=9)
    with pytest.raises(ConfigError, match=r"embedding: '11 rows' \(the vocabulary of 12"):
        build_tables(trace, contiguous(1, 4, 2), vocab_size=12, embedding=np.ones((11, 2)))


def test_best_two() -> None:
    device, second, share = best_two(np.array([[0.2, 0.5, 0.3], [0.4, 0.4, 0.2]]))
    assert (device.tolist(), second.tolist(), share.tolist()) == ([1, 0], [2, 1], [0.5, 0.4])
    assert best_two(np.array([[1.0]]))[1].tolist() == [0]


def test_ids_never_seen_go_where_those_met_in_one_sequence_go() -> None:
    """A common token, always on device 0, and in each of 100 sequences one of its own, always on device 1."""
    token_ids = np.stack([np.zeros(100, int), np.zeros(100, int), np.arange(1, 101)], axis=1).ravel()
    chosen = np.where(token_ids == 0, 0, 3)
    trace = trace_of(chosen[None, :, None], token_ids, experts=4, starts=[*range(0, 301, 3)])
    tables = build_tables(trace, contiguous(1, 4, 2), vocab_size=200)
    assert tables.token_device[0, [0, 150]].tolist() == [0, 1]
    assert tables.token_second[0, 150] == 0
    # A hundred of them, and 32 tokens' worth of what all tokens do.
    assert tables.token_confidence[0, 150] == pytest.approx((100 + 32 / 3) / 132, abs=1e-3)
