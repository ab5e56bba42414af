import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from smoe.core.errors import TraceError
from smoe.core.route_trace import RouteTrace
from smoe.offload.policies.table_prefetch import FollowerPrefetch, TokenPrefetch
from smoe.offload.policies.tables import RouteTables
from tests.offload.policies.support import routing

LAYERS = (1, 2, 4)


def feed(prefetch, tokens_and_choices):
    """One epoch a token: what it chose in each layer, as of one row."""
    for token, choices in tokens_and_choices:
        for layer, ids in zip(LAYERS, choices, strict=True):
            prefetch.observe(routing(layer, ids, tokens=[token]))


# Token 7 goes 0,1 -> 2,3 -> 4,5 twice; token 9 goes 0,2 -> 2,4 -> 4,0 once.
STREAM = [(7, ([0, 1], [2, 3], [4, 5])), (9, ([0, 2], [2, 4], [4, 0])), (7, ([0, 1], [2, 3], [4, 5]))]


def follower(**options):
    prefetch = FollowerPrefetch(RouteTables(LAYERS, 6), **{"width": 2} | options)
    feed(prefetch, STREAM)
    return prefetch


def test_what_followed_most_often_comes_first():
    # After 0 in layer 1: 2 in 3 of 3, 3 in 2 of 3, 4 in 1 of 3; after 1: 2 and 3 in 2 of 2. Averaged over 0 and 1:
    # 2 has 1, 3 has 5/6, 4 has 1/6.
    scores = follower().tables.next_scores(1, np.array([[0, 1]]))
    assert scores[0].tolist() == pytest.approx([0, 0, 1, 5 / 6, 1 / 6, 0])
    seen = routing(1, [0, 1], tokens=[7])
    assert follower().plan(seen, 2, None) == [(2, 2), (2, 3)]
    assert follower(width=5).plan(seen, 2, None) == [(2, 2), (2, 3), (2, 4)]  # never what never followed
    assert follower(width=5, threshold=0.9).plan(seen, 2, None) == [(2, 2)]


def test_the_last_layer_is_followed_by_the_next_tokens_first_layer():
    # Layer 4 chose 4, 5 before 0, 2 and (4, 0) before 0, 1: after 4, 0 in 2 of 2, 1 and 2 in 1 of 2 each.
    assert follower(width=3).plan(routing(4, [4, 3]), 1, None) == [(1, 0), (1, 1), (1, 2)]
    # With more rows than one it is not known whose token a row will be.
    assert list(follower().plan(routing(4, [4, 3], [4, 5]), 1, None)) == []


def test_rows_together_learn_and_name_what_they_would_alone():
    together, alone = (FollowerPrefetch(RouteTables(LAYERS, 6), width=2) for _ in range(2))
    for at, layer in enumerate(LAYERS):
        together.observe(routing(layer, *(choices[at] for _, choices in STREAM)))
    together.observe(routing(1, *(choices[0] for _, choices in STREAM)))  # the next forward: whose rows is not known
    feed(alone, STREAM)
    for layer in (0, 1):
        assert (together.tables.next_counts[layer] == alone.tables.next_counts[layer]).all()
    assert together.tables.next_counts[2].sum() == 0
    ids = np.array([[0, 1], [0, 2], [3, 5]])
    rows = [together.tables.next_scores(1, ids[[i]])[0] for i in range(3)]
    assert together.tables.next_scores(1, ids) == pytest.approx(np.array(rows))
    # Row 0 names 2 and 3, row 1 names 2 (1.0) and 4 (1/6 + 1/2).
    assert together.plan(routing(1, [0, 1], [0, 2]), 2, None) == [(2, 2), (2, 3), (2, 4)]


def test_other_rows_than_before_teach_nothing():
    prefetch = FollowerPrefetch(RouteTables(LAYERS, 6), width=2)
    prefetch.observe(routing(1, [0, 1]))
    prefetch.observe(routing(2, [0, 1], [2, 3]))  # another forward
    prefetch.observe(routing(1, [0, 1], [2, 3]))  # not the layer after
    prefetch.observe(routing(4, [0, 1], [2, 3]))  # nor this
    assert prefetch.tables.next_counts.sum() == 0


def test_frozen_tables_do_not_learn():
    for cls in (FollowerPrefetch, TokenPrefetch):
        prefetch = cls(RouteTables(LAYERS, 6), width=2, learn=False)
        feed(prefetch, STREAM)
        assert prefetch.tables.next_counts.sum() == prefetch.tables.token_counts.sum() == 0


def tokens(**options):
    max_tokens = options.pop("max_tokens", 16)
    prefetch = TokenPrefetch(RouteTables(LAYERS, 6, max_tokens=max_tokens), **{"width": 2} | options)
    feed(prefetch, [*STREAM, (7, ([0, 1], [2, 4], [4, 5]))])
    return prefetch


def test_a_token_goes_where_it_went_most_often():
    # Token 7 in layer 2: expert 2 in 3 of 3, 3 in 2 of 3, 4 in 1 of 3.
    seen = routing(1, [5, 5], tokens=[7])
    assert tokens(width=3).plan(seen, 2, None) == [(2, 2), (2, 3), (2, 4)]
    assert tokens(width=3, threshold=0.5).plan(seen, 2, None) == [(2, 2), (2, 3)]
    assert tokens().plan(routing(2, [5, 5], tokens=[9]), 4, None) == [(4, 0), (4, 4)]


def test_no_token_no_plan():
    assert list(tokens().plan(routing(1, [0, 1]), 2, None)) == []
    assert list(tokens().plan(routing(1, [0, 1], tokens=[8]), 2, None)) == []
    assert list(tokens().plan(routing(4, [0, 1], tokens=[7]), 1, None)) == []  # the next token is not known yet


def test_rows_of_tokens_join():
    # Row 7 names 2 (1.0) and 3 (2/3), row 9 names 2 and 4 (1.0 each), row 8 nobody.
    assert tokens().plan(routing(1, [0, 1], [0, 1], [0, 1], tokens=[7, 8, 9]), 2, None) == [(2, 2), (2, 4), (2, 3)]


def test_no_more_tokens_than_allowed():
    prefetch = tokens(max_tokens=1)
    assert prefetch.tables.token_ids().tolist() == [7]
    assert list(prefetch.plan(routing(1, [0, 1], tokens=[9]), 2, None)) == []
    many = RouteTables(LAYERS, 6, max_tokens=200)
    many.learn_tokens(1, np.arange(300), np.zeros((300, 2), np.int32))
    assert many.token_ids().tolist() == list(range(200))
    assert many.token_rows[:, 0].tolist() == [1.0] * 200


def trace(stream):
    ids = np.array([[choices[at] for _, choices in stream] for at in range(3)], dtype=np.int16)
    return RouteTrace(
        fingerprint="",
        num_experts=6,
        top_k=2,
        layers=LAYERS,
        token_ids=np.array([token for token, _ in stream], dtype=np.int32),
        sequence_start=np.array([0, 2, len(stream)]),
        phase=np.zeros(len(stream), np.uint8),
        expert_ids=ids,
    )


def test_a_trace_teaches_what_the_passes_do_except_across_sequences():
    learnt = RouteTables(LAYERS, 6, max_tokens=16)
    learnt.learn_trace(trace(STREAM))
    online = RouteTables(LAYERS, 6, max_tokens=16)
    for sequence in (STREAM[:2], STREAM[2:]):
        feed(FollowerPrefetch(online, width=2), sequence)
        feed(TokenPrefetch(online, width=2), sequence)
    assert (learnt.next_counts == online.next_counts).all()
    seen = np.array([7, 9, 8])
    for layer in LAYERS:
        assert (learnt.token_scores(layer, seen) == online.token_scores(layer, seen)).all()


def test_of_a_trace_the_most_frequent_tokens_become_known():
    learnt = RouteTables(LAYERS, 6, max_tokens=1)
    learnt.learn_trace(trace(STREAM[1:] + STREAM[:1]))
    assert learnt.token_ids().tolist() == [7]
    with pytest.raises(ValueError, match=r"layers \[1, 2, 4\], 6 experts \(expected \[1, 2\], 6\)"):
        RouteTables((1, 2), 6).learn_trace(trace(STREAM))


def saved(path):
    tables = RouteTables(LAYERS, 6, max_tokens=16)
    tables.learn_trace(trace(STREAM))
    tables.save(path)
    return tables


def test_tables_saved_are_tables_loaded(tmp_path):
    tables = saved(tmp_path / "tables.safetensors")
    loaded = RouteTables.load(tmp_path / "tables.safetensors", max_tokens=3)
    assert loaded.layers == LAYERS
    assert loaded.num_experts == 6
    assert (loaded.next_counts == tables.next_counts).all()
    assert (loaded.token_scores(2, np.array([7, 9])) == tables.token_scores(2, np.array([7, 9]))).all()
    for token in (1, 2):
        loaded.learn_tokens(1, np.array([token]), np.array([[0, 1]]))
    assert loaded.token_ids().tolist() == [7, 9, 1]


def broken(path, *, header=None, **arrays):
    saved(path)
    told = {"schema": "smoe.route_tables/1", "num_experts": 6, "layers": list(LAYERS)} | (header or {})
    changed = {k: v for k, v in (load_file(path) | arrays).items() if v is not None}
    save_file(changed, path, metadata={"route_tables": json.dumps(told)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"header": {"schema": "smoe.route_tables/9"}}, "schema 'smoe.route_tables/9'"),
        ({"header": {"num_experts": 7}}, r"next_counts: shape \[3, 6, 6\] \(expected \[3, 7, 7\]"),
        ({"header": {"num_experts": "x"}}, "route tables: TypeError"),
        ({"token_rows": None}, "KeyError: 'token_rows'"),
        ({"token_ids": np.array([7, 7], np.int32)}, "distinct tokens"),
        ({"token_rows": np.full((2, 3), np.nan, np.float32)}, "token_rows: .* finite"),
        ({"next_counts": np.full((3, 6, 6), -1, np.float32)}, "next_counts: .* 0 or above"),
    ],
)
def test_tables_that_are_none_are_refused(tmp_path, change, message):
    path = tmp_path / "tables.safetensors"
    broken(path, **change)
    with pytest.raises(TraceError, match=message) as error:
        RouteTables.load(path)
    assert str(error.value).startswith(str(path))


def test_files_that_are_none_are_refused(tmp_path):
    path = tmp_path / "tables.safetensors"
    with pytest.raises(TraceError, match="No such file"):
        RouteTables.load(path)
    path.write_bytes(b"\x08\0\0\0\0\0\0\0{}      ")
    with pytest.raises(TraceError, match="route tables"):
        RouteTables.load(path)
    saved(path)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(TraceError, match="route tables"):
        RouteTables.load(path)
