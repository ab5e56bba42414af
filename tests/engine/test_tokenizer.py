import json
import shutil
from pathlib import Path

import pytest

from smoe.core.errors import CheckpointError, RequestError
from smoe.engine.tokenizer import Tokenizer, eos_token_ids, load_tokenizer
from smoe.models.loading import model_folder

TEMPLATE = """{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}
{{- m.role }}: {{ m.content }}
{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(model_folder("builtin") / name, tmp_path / name)
    return tmp_path


def set_config(folder: Path, **values: object) -> Tokenizer:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
    tokenizer = load_tokenizer(folder)
    assert tokenizer is not None
    return tokenizer


def test_end_of_sequence_is_the_union_of_three_sources(folder: Path) -> None:
    tokenizer = set_config(folder)
    assert eos_token_ids(folder, (7,), tokenizer) == (0, 7)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [9, 7]}))
    assert eos_token_ids(folder, (), tokenizer) == (0, 7, 9)
    assert eos_token_ids(folder, (3,), None) == (3, 7, 9)
    for single in ({"eos_token_id": 9}, {"eos_token_id": None}, {}):
        (folder / "generation_config.json").write_text(json.dumps(single))
        assert eos_token_ids(folder, (), None) == ((9,) if single.get("eos_token_id") else ())


@pytest.mark.parametrize("text", ["{", "[]", '{"eos_token_id": "a"}', '{"eos_token_id": [1, true]}'])
def test_a_broken_generation_config_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "generation_config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"generation_config\.json: "):
        eos_token_ids(tmp_path, (), None)


def test_no_tokenizer_is_fine_and_a_broken_one_is_not(tmp_path: Path) -> None:
    assert load_tokenizer(tmp_path) is None
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"tokenizer does not load: .+"):
        load_tokenizer(tmp_path)


def test_chat_template(folder: Path) -> None:
    tokenizer = set_config(folder, chat_template=TEMPLATE)
    ids = tokenizer.encode_chat([{"role": "user", "content": "Hi"}])
    assert tokenizer.decode(ids).split() == ["user:", "Hi", "assistant:"]
    with pytest.raises(RequestError, match="chat template: no tools here"):
        tokenizer.encode_chat([{"role": "tool", "content": "Hi"}])


def test_chat_without_template(folder: Path) -> None:
    with pytest.raises(RequestError, match="no chat template"):
        set_config(folder, chat_template=None).encode_chat([{"role": "user", "content": "Hi"}])


def test_a_lone_surrogate_is_an_error_of_the_request(folder: Path) -> None:
    tokenizer = set_config(folder, chat_template=TEMPLATE)
    with pytest.raises(RequestError, match="character 2 is a lone surrogate"):
        tokenizer.encode("ab\udcff")
    with pytest.raises(RequestError, match=r"messages: .*lone surrogate"):
        tokenizer.encode_chat([{"role": "user", "content": "\udcff"}])
