from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smoe.core.errors import ConfigError, TraceError
from smoe.core.packaged_traces import open_trace, packaged_names
from smoe.core.route_edit import merge, sample_sequences, split
from smoe.core.route_import import import_routes
from smoe.core.route_trace import read_route_trace, write_route_trace

RNG = np.random.default_rng(3)


def picks(layers: int, tokens: int, top_k: int, experts: int) -> Any:
    return RNG.random((layers, tokens, experts)).argsort(-1)[..., :top_k].astype(np.uint8)


def save(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def gpt_oss() -> dict[str, Any]:
    return {
        "ids": picks(24, 9, 4, 32),
        "seq_start": np.array([0, 4, 6, 9], dtype=np.int32),
        "token_uid": np.arange(9, dtype=np.int32),
    }


def deepseek() -> tuple[dict[str, Any], dict[str, Any]]:
    routes, weights = {}, {}
    for task, tokens in (("law", 3), ("intent", 5)):
        routes[f"{task}_ids"] = picks(26, tokens, 6, 64)
        routes[f"{task}_seq_start"] = np.array([0, 2, tokens], dtype=np.int32)
        weights[f"{task}_weights_e4"] = RNG.integers(1, 4000, (26, tokens, 6)).astype(np.uint16)
    return routes, weights


def bigmoe() -> dict[str, Any]:
    ids = picks(5, 7, 3, 128).transpose(1, 0, 2).copy()
    weights = RNG.random((7, 5, 3)).astype(np.float16)
    ids[:3, 4], weights[:3, 4] = 255, np.nan
    return {
        "ids": ids,
        "weights": weights,
        "phase": np.array([0, 0, 0, 0, 1, 1, 1], dtype=np.uint8),
        "expert_bytes": np.full(5, 9),
    }


def test_decode_steps_with_and_without_weights(tmp_path: Path) -> None:
    arrays = gpt_oss()
    path = save(tmp_path / "routes.npz", **arrays)
    trace = import_routes(path)
    assert np.array_equal(trace.expert_ids, arrays["ids"])
    assert trace.expert_weights is None
    assert trace.token_ids.tolist() == list(range(9))
    assert trace.phase.tolist() == [1] * 9
    weights = np.sort(RNG.integers(0, 255, (24, 5, 4)).astype(np.uint8), axis=-1)[..., ::-1]
    beside = save(tmp_path / "weights.npz", weights_u8=weights, seq_index=np.array([1, 2]))
    part = import_routes(path, weights=beside)
    assert np.array_equal(part.expert_ids, arrays["ids"][:, 4:])
    assert part.sequence_start.tolist() == [0, 2, 5]
    assert part.expert_weights is not None
    assert np.allclose(part.expert_weights, weights / 255, atol=1e-3)


def test_sequences_are_named_chosen_and_left_out(tmp_path: Path) -> None:
    arrays = gpt_oss() | {"dataset": np.array(["mmlu", "gpqa", "mmlu"]), "repetition": np.array([False, False, True])}
    path = save(tmp_path / "r.npz", **arrays)
    assert import_routes(path).labels == ("mmlu", "gpqa", "mmlu")
    calm = import_routes(path, without_repetition=True)
    assert (calm.labels, calm.token_ids.tolist()) == (("mmlu", "gpqa"), [0, 1, 2, 3, 4, 5])
    assert import_routes(path, datasets=["mmlu"]).token_ids.tolist() == [0, 1, 2, 3, 6, 7, 8]
    weights = np.sort(RNG.integers(0, 255, (24, 5, 4)).astype(np.uint8), axis=-1)[..., ::-1]
    beside = save(tmp_path / "weights.npz", weights_u8=weights, seq_index=np.array([1, 2]))
    part = import_routes(path, weights=beside, without_repetition=True)
    assert (part.labels, part.token_ids.tolist()) == (("gpqa",), [4, 5])
    with pytest.raises(ConfigError, match=r"dataset: 'prose' \(one of gpqa, mmlu\)"):
        import_routes(path, datasets=["prose"])
    with pytest.raises(TraceError, match="no sequence is left"):
        import_routes(save(path, **arrays | {"repetition": np.ones(3, dtype=bool)}), without_repetition=True)
    with pytest.raises(TraceError, match="repetition: missing"):
        import_routes(save(path, **gpt_oss()), without_repetition=True)
    routes, _ = deepseek()
    with pytest.raises(ConfigError, match=r"without_repetition: True \(has no effect"):
        import_routes(save(path, **routes), without_repetition=True)


def test_slots_without_order_are_ranked_by_the_weights_file(tmp_path: Path) -> None:
    routes, weights = deepseek()
    path, beside = save(tmp_path / "r.npz", **routes), save(tmp_path / "w.npz", **weights)
    trace = import_routes(path, weights=beside)
    assert trace.layers == tuple(range(1, 27))
    assert trace.labels == ("intent", "intent", "law", "law")
    assert trace.sequence_start.tolist() == [0, 2, 5, 7, 8]
    assert trace.expert_weights is not None
    for layer, token, row, slot in ((0, 1, 1, 0), (25, 4, 4, 5)):
        order = np.argsort(-weights["intent_weights_e4"][layer, token].astype(int), kind="stable")
        assert trace.expert_ids[layer, row, slot] == routes["intent_ids"][layer, token, order[slot]]
        expected = weights["intent_weights_e4"][layer, token, order[slot]] / 1e4
        assert abs(float(trace.expert_weights[layer, row, slot]) - expected) < 1e-3
    assert import_routes(path, weights=beside, task="law").num_tokens == 3
    with pytest.raises(ConfigError, match=r"task: 'prose' \(one of intent, law\)"):
        import_routes(path, weights=beside, task="prose")
    with pytest.raises(ConfigError, match="weights: None"):
        import_routes(path)


def test_what_was_not_computed_is_left_out_by_token_or_by_layer(tmp_path: Path) -> None:
    arrays = bigmoe()
    path = save(tmp_path / "r.npz", **arrays)
    tokens = import_routes(path)
    assert (tokens.num_tokens, len(tokens.layers)) == (4, 5)
    assert tokens.phase.tolist() == [0, 1, 1, 1]
    assert np.array_equal(np.sort(tokens.expert_ids, -1), np.sort(arrays["ids"][3:].transpose(1, 0, 2), -1))
    layers = import_routes(path, incomplete="layers")
    assert (layers.num_tokens, layers.layers) == (7, (0, 1, 2, 3))
    arrays["ids"][5, 2, 0] = 255
    with pytest.raises(TraceError, match=r"r\.npz: ids\[2, 5\]: .*255.* \(255 in all slots or in none\)"):
        import_routes(save(path, **arrays))


def with_value(array: Any, index: Any, value: int) -> Any:
    changed = array.astype(np.int16)
    changed[index] = value
    return changed


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda a: a.update(ids=a["ids"][..., :3]), r"ids: shape \[24, 9, 3\] \(24 layers, tokens, top-4\)"),
        (lambda a: a.update(ids=a["ids"][:23]), r"ids: shape \[23, 9, 4\] \(24 layers"),
        (lambda a: a.update(ids=with_value(a["ids"], (3, 5, 1), 32)), r"ids\[3, 5, 1\]: 32 \(0 to 31"),
        (lambda a: a.update(ids=with_value(a["ids"], (3, 5, 1), -1)), r"ids\[3, 5, 1\]: -1 \(0 to 31"),
        (lambda a: a.update(ids=a["ids"][:, :8]), r"seq_start\[3\]: 9 \(the 8 tokens"),
        (lambda a: a.update(seq_start=np.array([0, 6, 4, 9])), r"sequence_start\[2\]: 4 \(ascending"),
        (lambda a: a.pop("token_uid"), r"no routes of tokens"),
    ],
)
def test_broken_files_name_file_position_and_value(tmp_path: Path, edit: Any, message: str) -> None:
    arrays = gpt_oss()
    edit(arrays)
    with pytest.raises(TraceError, match=rf"r\.npz: {message}"):
        import_routes(save(tmp_path / "r.npz", **arrays))


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    path = save(tmp_path / "r.npz", **gpt_oss())
    whole = path.read_bytes()
    for length in (0, 10, len(whole) // 2, len(whole) - 5):
        path.write_bytes(whole[:length])
        with pytest.raises(TraceError, match=r"r\.npz"):
            import_routes(path)
    with pytest.raises(TraceError, match=r"none\.npz"):
        import_routes(tmp_path / "none.npz")


def test_parts_come_together_again(tmp_path: Path) -> None:
    trace = import_routes(save(tmp_path / "r.npz", **gpt_oss()))
    first, second = split(trace, 0.6, seed=1)
    assert (first.num_sequences, second.num_sequences) == (2, 1)
    both = merge([first, second], ["a", "b"])
    assert sorted(both.token_ids.tolist()) == list(range(9))
    order = [int(np.flatnonzero(trace.token_ids == token)[0]) for token in both.token_ids]
    assert np.array_equal(both.expert_ids, trace.expert_ids[:, order])
    with pytest.raises(ConfigError, match="fraction: nan"):
        split(trace, float("nan"))
    with pytest.raises(ConfigError, match="at least 2 to split"):
        split(second, 0.5)


def test_a_sample_cuts_sequences_and_the_last(tmp_path: Path) -> None:
    trace = import_routes(save(tmp_path / "r.npz", **gpt_oss()))
    sample = sample_sequences(trace, 5, longest=3)
    assert sample.num_tokens == 5
    assert max(np.diff(sample.sequence_start)) <= 3
    starts = {0, 4, 6}
    assert all(int(sample.token_ids[i]) in starts for i in sample.sequence_start[:-1])
    assert sample_sequences(trace, 100).num_tokens == 9


def test_traces_of_different_models_do_not_merge(tmp_path: Path) -> None:
    routes, weights = deepseek()
    other = import_routes(save(tmp_path / "d.npz", **routes), weights=save(tmp_path / "w.npz", **weights))
    trace = import_routes(save(tmp_path / "r.npz", **gpt_oss()))
    with pytest.raises(TraceError, match="b: fingerprint: 'imported:deepseek-v2-lite'"):
        merge([trace, other], ["a", "b"])


def test_compressed_is_the_same_trace_and_the_same_bytes(tmp_path: Path) -> None:
    trace = import_routes(save(tmp_path / "r.npz", **gpt_oss()))
    one, two = tmp_path / "one.safetensors.gz", tmp_path / "two.safetensors.gz"
    write_route_trace(one, trace)
    write_route_trace(two, read_route_trace(one))
    assert one.read_bytes() == two.read_bytes()
    one.write_bytes(one.read_bytes()[:-20])
    with pytest.raises(TraceError, match=r"one\.safetensors\.gz"):
        read_route_trace(one)


@pytest.mark.parametrize(("name", "shape"), [("gpt-oss-20b", (24, 4096, 4)), ("deepseek-v2-lite", (26, 2048, 6))])
def test_the_packaged_traces_are_whole(name: str, shape: tuple[int, ...]) -> None:
    assert name in packaged_names()
    trace = open_trace(name)
    assert trace.expert_ids.shape == shape
    assert trace.expert_weights is not None


def test_an_unknown_trace_names_the_packaged_ones() -> None:
    with pytest.raises(TraceError, match=r"nothing: no such file .*deepseek-v2-lite, gpt-oss-20b"):
        open_trace("nothing")
