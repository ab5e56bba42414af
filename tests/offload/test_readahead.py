import json
import os
import re

import pytest
import torch

from smoe.core.errors import StoreError
from smoe.offload import readahead
from smoe.offload.readahead import DEFAULT, SETTINGS, Readahead, known_readahead, measured_readahead
from smoe.offload.shelf import Shelf
from tests.offload.support import ExpertFiles


@pytest.fixture
def layouts(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(readahead, "SETTING_S", 0.0)
    files = ExpertFiles(tmp_path)
    return Shelf(files.spec, files.source, torch.bfloat16).layouts


def test_small_models_are_not_measured(layouts, tmp_path):
    assert measured_readahead(layouts) == DEFAULT
    assert not (tmp_path / "cache").exists()


def test_measured_once_and_kept(layouts, tmp_path):
    first = measured_readahead(layouts, threshold_bytes=0)
    assert first.source == "measured"
    assert first.bytes_per_s > 0
    assert (first.num_threads, first.chunk_bytes) in SETTINGS
    again = measured_readahead(layouts, threshold_bytes=0)
    assert again == Readahead(first.num_threads, first.chunk_bytes, first.bytes_per_s, "kept")
    assert [p.name for p in (tmp_path / "cache" / "smoe").iterdir()] == ["readahead.json"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"other:1": {}}'])
def test_a_damaged_or_foreign_file_is_measured_over(layouts, tmp_path, text):
    path = tmp_path / "cache" / "smoe" / "readahead.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert measured_readahead(layouts, threshold_bytes=0).source == "measured"
    assert any(entry.get("num_threads") for entry in json.loads(path.read_text()).values())


def test_what_is_kept_is_known_without_measuring(layouts, tmp_path):
    assert known_readahead(tmp_path) == DEFAULT
    assert str(DEFAULT) == "4 threads, pieces of 4096 KiB (default)"
    measured_readahead(layouts, threshold_bytes=0)
    assert known_readahead(tmp_path) == known_readahead(layouts[0].segments[0].path)
    assert re.fullmatch(r"\d threads, pieces of \d+ KiB \(kept, [\d.]+ GB/s\)", str(known_readahead(tmp_path)))
    with pytest.raises(OSError, match="No such file"):
        known_readahead(tmp_path / "nowhere")


def test_failing_to_measure_takes_the_defaults(layouts, tmp_path, monkeypatch):
    def refuse(*args):
        raise StoreError("no")

    monkeypatch.setattr(readahead, "_rate", refuse)
    assert measured_readahead(layouts, threshold_bytes=0) == DEFAULT


def test_a_folder_that_cannot_be_written_is_no_error(layouts, tmp_path):
    (tmp_path / "cache").write_text("a file")
    assert measured_readahead(layouts, threshold_bytes=0).source == "measured"
    assert os.path.isfile(tmp_path / "cache")


def test_another_setting_must_be_clearly_faster(layouts, monkeypatch):
    for factor, expected in ((1.04, SETTINGS[0]), (1.2, SETTINGS[1])):
        rates = {setting: 1e9 * (factor if setting == SETTINGS[1] else 1) for setting in SETTINGS}
        monkeypatch.setattr(readahead, "_rate", lambda _, *setting, rates=rates: rates[setting])
        found = readahead._sweep(layouts)
        assert (found.num_threads, found.chunk_bytes) == expected
