"""A copy of the built-in model whose answers are full of bytes that are no characters alone.

Ids of tokens that a text uses much change places in the vocabulary with those of the bytes of two-byte characters: what
often comes first with first bytes, what often follows it with second ones. So characters come in two tokens, and broken
ones come too.
"""

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

from tokenizers import Tokenizer

from smoe.engine.token_bytes import byte_table
from smoe.models.loading import model_folder

FIRST, SECOND = range(0xC2, 0xE0), range(0x80, 0xC0)


def write_byte_model(folder: Path, text: str) -> Path:
    source = model_folder("builtin")
    for file in source.iterdir():
        if file.suffix in (".json", ".safetensors") and file.name != "tokenizer.json":
            (folder / file.name).symlink_to(file.resolve())
    pairs = Counter(pairwise(Tokenizer.from_file(str(source / "tokenizer.json")).encode(text).ids))
    body = json.loads((source / "tokenizer.json").read_text())
    vocab: dict[str, int] = body["model"]["vocab"]
    bytes_of = {byte: vocab[char] for char, byte in byte_table().items()}
    swapped = _dealt([pair for pair, _ in pairs.most_common()], bytes_of)
    body["model"]["vocab"] = {token: swapped.get(number, number) for token, number in vocab.items()}
    (folder / "tokenizer.json").write_text(json.dumps(body))
    return folder


def _dealt(pairs: list[tuple[int, int]], id_of: dict[int, int]) -> dict[int, int]:
    """Which ids change places, both ways."""
    left = (list(FIRST), list(SECOND))
    own, swapped = set(id_of.values()), dict[int, int]()
    for pair in pairs:
        if not any(token in swapped or token in own for token in pair) and all(left):
            for token, bytes_left in zip(dict.fromkeys(pair), left, strict=False):
                byte_id = id_of[bytes_left.pop()]
                swapped[token], swapped[byte_id] = byte_id, token
    return swapped
