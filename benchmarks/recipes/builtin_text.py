"""Texts, tokenizer and batches for the built-in model."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from builtin_model import CONTEXT, VOCAB
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

END = "<|endoftext|>"
_TRAINED_CHARS = 6_000_000
_PIECE_CHARS = 200_000
# As the dialogues of the training text: one line a turn. A system message stands before them like a stage direction.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ message['content'] | trim + '\\n\\n' }}"
    "{% elif message['role'] == 'user' %}{{ 'User: ' + message['content'] | trim + '\\n' }}"
    "{% else %}{{ 'Assistant: ' + message['content'] | trim + '\\n' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "eos_token": END,
    "bos_token": END,
    "model_max_length": CONTEXT,
    "clean_up_tokenization_spaces": False,
    "chat_template": CHAT_TEMPLATE,
}


def tokenise(text_dir: Path, out: Path) -> dict[str, np.ndarray]:
    """Trains (once) a byte-level BPE on all domains and encodes every file of `text_dir` to uint16."""
    files = sorted(text_dir.glob("*.txt.gz"))
    path = out / "tokenizer.json"
    if not path.exists():
        _train_tokenizer([f for f in files if ".heldout" not in f.name]).save(str(path))
        (out / "tokenizer_config.json").write_text(json.dumps(TOKENIZER_CONFIG, indent=2) + "\n")
    tokenizer = Tokenizer.from_file(str(path))
    return {f.name.removesuffix(".txt.gz"): _encode(tokenizer, f) for f in files}


def draw(
    source: dict[str, np.ndarray], probs: dict[str, float], count: int, seq: int, rng: np.random.Generator
) -> torch.Tensor:
    """[count, seq + 1] ids; each row a random window of a domain drawn by `probs`."""
    rows = []
    for name in rng.choice(list(probs), count, p=list(probs.values())):
        ids = source[name]
        start = rng.integers(0, len(ids) - seq - 1)
        rows.append(ids[start : start + seq + 1])
    return torch.from_numpy(np.stack(rows).astype(np.int64))


def _train_tokenizer(files: list[Path]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB, special_tokens=[END], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )

    def texts() -> Iterator[str]:
        for path in files:
            with gzip.open(path, "rt", encoding="utf-8", errors="ignore") as file:
                yield file.read(_TRAINED_CHARS)

    tokenizer.train_from_iterator(texts(), trainer)
    return tokenizer


def _encode(tokenizer: Tokenizer, path: Path) -> np.ndarray:
    with gzip.open(path, "rt", encoding="utf-8", errors="ignore") as file:
        text = file.read()
    ids: list[int] = []
    for document in text.split(END):
        for start in range(0, len(document), _PIECE_CHARS):
            ids += tokenizer.encode(document[start : start + _PIECE_CHARS]).ids
        ids.append(0)
    return np.array(ids, dtype=np.uint16)
