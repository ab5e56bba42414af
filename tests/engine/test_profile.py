import gzip
import json
from pathlib import Path

import pytest

from smoe.core.errors import ConfigError, StoreError
from smoe.core.route_trace import read_route_trace
from smoe.core.sampling import SamplingParams
from smoe.engine.core import EngineCore
from smoe.engine.local import LocalClient
from smoe.engine.profile import run_pieces
from smoe.engine.profile_data import Document, read_documents, split_text
from smoe.engine.profile_folder import ProfileFolder
from smoe.engine.profile_sequences import Piece, choose, one_by_one, packed
from smoe.engine.recorder import RouteRecorder
from tests.engine.fakes import INFO, LOST_TOKEN, NAN_TOKEN, make_runner


def test_texts_are_cut_at_blank_lines_and_code_at_file_lines() -> None:
    assert split_text("one\ntwo\n\nthree\n \n\nfour\n") == ["one\ntwo", "three", "four"]
    assert split_text("a\r\n\r\nb") == ["a", "b"]
    code = "# file: a.py\nx = 1\n\n\ny = 2\n\n\n# file: b.py\nz\n"
    assert split_text(code) == ["# file: a.py\nx = 1\n\n\ny = 2", "# file: b.py\nz"]


def test_prompts_come_from_the_first_field_there_is(tmp_path: Path) -> None:
    rows = [{"prompt": "a"}, {"question": "b"}, {"text": "c"}, {"turns": ["d", "e"]}]
    path = tmp_path / "chat.first.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    assert read_documents([path]) == [Document("chat", text) for text in "abcd"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.txt", b"fine\nbad \xff\n", r"line 2: byte 0xff is not UTF-8"),
        ("x.txt", b" \n\n", r"there is none"),
        ("x.txt.gz", b"not gzip", r"a readable file: Not a gzipped file"),
        ("x.txt.gz", gzip.compress(b"long enough to be cut", mtime=0)[:-6], r"a readable file: "),
        ("x.jsonl", b'{"prompt": "a"}\n{"prompt": ', r"line 2: no JSON"),
        ("x.jsonl", b'{"answer": "a"}', r"line 1: an object with one of the fields prompt, question, text, turns"),
        ("x.jsonl", b'{"prompt": 5}', r"line 1: prompt: '5' is no text"),
        ("x.jsonl", b'{"turns": []}', r"line 1: turns: '\[\]' is no text"),
        ("x.csv", b"a,b", r"a \.txt, \.txt\.gz, \.jsonl or \.jsonl\.gz file"),
    ],
)
def test_bad_files_are_named_with_line_and_reason(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"data: '.*{name}' \(.*{message}"):
        read_documents([path])
    with pytest.raises(ConfigError, match=r"none\.txt' \(a readable file: No such file"):
        read_documents([tmp_path / "none.txt"])


def encode(text: str) -> list[int]:
    return [ord(c) for c in text if c != "-"]


DOCUMENTS = [Document("x", "abcdef"), Document("x", "-"), Document("x", "gh"), Document("y", "ij")]


def test_documents_are_cut_or_packed() -> None:
    singles = list(one_by_one(DOCUMENTS, [0, 1, 3], encode, 4))
    assert [(p.name, p.label, bytes(p.token_ids), p.cut_tokens) for p in singles] == [
        ("0", "x", b"abcd", 2),
        ("3", "y", b"ij", 0),
    ]
    full = list(packed(DOCUMENTS, [0, 2, 3], encode, 4))
    assert [(p.label, bytes(p.token_ids)) for p in full] == [
        ("x", b"abcd"),
        ("x", b"ef\n\n"),
        ("x", b"gh"),
        ("y", b"ij"),
    ]
    assert len({p.name for p in full}) == 4


def test_a_sample_is_drawn_by_seed_and_keeps_the_order() -> None:
    documents = [Document("x", str(i)) for i in range(100)]
    first = choose(documents, 0.25, 0)
    assert first == choose(documents, 0.25, 0) == sorted(set(first))
    assert (len(first), len(choose(documents, 0.001, 0)), len(choose(documents, 1.0, 0))) == (25, 1, 100)
    assert first != choose(documents, 0.25, 1)


def run(folder: ProfileFolder, pieces: list[Piece], max_tokens: int = 1, part_tokens: int = 8) -> None:
    recorder = RouteRecorder(folder.path, INFO, part_tokens=part_tokens)
    core = EngineCore(
        make_runner(recorder=recorder), None, max_num_seqs=4, max_num_batched_tokens=6, record_fraction=1.0
    )
    client = LocalClient(core)
    try:
        run_pieces(client, pieces, folder, SamplingParams(max_tokens=max_tokens, ignore_eos=True), lambda _: None)
    finally:
        client.shutdown()


def piece(name: str, *ids: int) -> Piece:
    return Piece(name, "label", ids)


@pytest.mark.parametrize("max_tokens", [1, 3])
@pytest.mark.parametrize("part_tokens", [1, 8, 1000])
def test_all_sequences_are_there_however_the_parts_fall(tmp_path: Path, part_tokens: int, max_tokens: int) -> None:
    folder = ProfileFolder(tmp_path / "t", {})
    pieces = [piece(str(i), *range(1, 2 + i % 5)) for i in range(12)]
    run(folder, pieces, max_tokens, part_tokens)
    assert (len(list(folder.path.glob("*.safetensors"))) == 1) == (part_tokens == 1000)
    kept = folder.kept()
    folder.finish([kept.places[p.name] for p in pieces], tuple(p.name for p in pieces))
    trace = read_route_trace(tmp_path / "t")
    assert trace.labels == tuple(str(i) for i in range(12))
    for one, start, end in zip(pieces, trace.sequence_start, trace.sequence_start[1:], strict=False):
        assert end - start == len(one.token_ids) + max_tokens - 1
        assert tuple(trace.token_ids[start : start + len(one.token_ids)]) == one.token_ids
        assert trace.phase[start:end].tolist() == [0] * len(one.token_ids) + [1] * (max_tokens - 1)
    assert not folder.path.exists()


def test_routes_without_an_end_and_ends_without_routes_run_again(tmp_path: Path) -> None:
    folder = ProfileFolder(tmp_path / "t", {"seed": 1})
    run(folder, [piece("a", 1, 2), piece("b", 3, 4, 5), piece("c", 6)])
    ended = folder.path / "ended.jsonl"
    lines = ended.read_text().splitlines()
    # b's end was not noted; d's routes were lost with the process, while its end was noted; c's end is half written.
    kept_lines = [line for line in lines if '"a"' in line] + ['{"name": "d", "rows": 2}', '{"name": "c", "ro']
    ended.write_text("\n".join(kept_lines))
    again = ProfileFolder(tmp_path / "t", {"seed": 1})
    assert again.resumed
    assert sorted(again.kept().places) == ["a"]
    run(again, [piece("b", 3, 4, 5), piece("c", 6), piece("d", 7, 8)])
    assert sorted(again.kept().places) == ["a", "b", "c", "d"]


def test_a_numeric_error_leaves_its_sequence_out_and_a_lost_expert_ends_the_run(tmp_path: Path) -> None:
    folder = ProfileFolder(tmp_path / "t", {})
    run(folder, [piece("a", 1, 2), piece("bad", 3, NAN_TOKEN)])
    kept = folder.kept()
    assert (sorted(kept.places), sorted(kept.failed)) == (["a"], ["bad"])
    with pytest.raises(StoreError, match="sequence lost: store: "):
        run(folder, [piece("lost", 5, LOST_TOKEN)])


def test_other_arguments_do_not_go_on(tmp_path: Path) -> None:
    ProfileFolder(tmp_path / "t", {"seed": 1, "sample": 0.5})
    with pytest.raises(ConfigError, match=r"^seed: 2 \(1, with which .*t\.parts was begun"):
        ProfileFolder(tmp_path / "t", {"seed": 2, "sample": 0.5})
    (tmp_path / "t").write_text("there")
    with pytest.raises(ConfigError, match=r"out: .* \(a file that does not exist yet\)"):
        ProfileFolder(tmp_path / "t", {"seed": 1, "sample": 0.5})
    with pytest.raises(ConfigError, match=r"out: .* \(in a folder that exists\)"):
        ProfileFolder(tmp_path / "none" / "t", {})
