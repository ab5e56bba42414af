"""The tokenizer of a model folder, and which tokens end an answer."""

import json
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from smoe.core.errors import CheckpointError, RequestError
from smoe.engine.detokenize import ByteDetokenizer, Detokenizer, WindowDetokenizer
from smoe.engine.token_bytes import TokenBytes

_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tiktoken.model", "spiece.model")


class Tokenizer:
    """A transformers tokenizer with the few calls that the engine needs. Thread-safe."""

    def __init__(self, hf_tokenizer: Any) -> None:
        self._hf = hf_tokenizer
        self._lock = threading.Lock()  # encoding sets truncation on the shared Rust object first
        backend = getattr(hf_tokenizer, "backend_tokenizer", None)
        special = frozenset(hf_tokenizer.all_special_ids)
        self._bytes_of: TokenBytes | None = None
        if backend is not None:
            decoder = json.loads(backend.to_str()).get("decoder") or {}
            special |= {i for i, token in backend.get_added_tokens_decoder().items() if token.special}
            if decoder.get("type") == "ByteLevel":
                self._bytes_of = TokenBytes(backend.id_to_token, special)

    @property
    def eos_token_id(self) -> int | None:
        eos: int | None = self._hf.eos_token_id
        return eos

    @property
    def has_chat_template(self) -> bool:
        return bool(self._hf.chat_template)

    def first_difference(self, other: "Tokenizer") -> int | None:
        """The lowest token id that is not the same text to both; None when there is none."""
        mine, theirs = ({i: token for token, i in each._hf.get_vocab().items()} for each in (self, other))
        return min((i for i in mine.keys() | theirs.keys() if mine.get(i) != theirs.get(i)), default=None)

    def encode(self, text: str) -> list[int]:
        """Token ids of a prompt, with what the tokenizer puts in front (BOS). Raises RequestError."""
        _check_unicode(text)
        with self._lock:
            ids: list[int] = self._hf.encode(text, verbose=False)  # the length is judged elsewhere
        return ids

    def encode_chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Token ids up to where the assistant speaks. Raises RequestError, also for what the template rejects."""
        from jinja2 import TemplateError

        if not self.has_chat_template:
            raise RequestError("messages", f"{len(messages)} messages", "this model folder has no chat template")
        for message in messages:
            _check_unicode(str(message.get("content", "")), "messages")
        try:
            text: str = self._hf.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        except (TemplateError, TypeError, ValueError) as error:
            raise RequestError("messages", [m.get("role") for m in messages], f"chat template: {error}") from error
        with self._lock:
            ids: list[int] = self._hf.encode(text, add_special_tokens=False, verbose=False)
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids without special tokens; bytes that are no UTF-8 become U+FFFD."""
        if self._bytes_of is not None:
            return b"".join(map(self._bytes_of, token_ids)).decode("utf-8", "replace")
        text: str = self._hf.decode(list(token_ids), skip_special_tokens=True)
        return text

    def detokenizer(self, prompt_token_ids: Sequence[int]) -> Detokenizer:
        if self._bytes_of is not None:
            return ByteDetokenizer(self._bytes_of, prompt_token_ids)
        return WindowDetokenizer(self.decode, prompt_token_ids)


def load_tokenizer(folder: Path) -> Tokenizer | None:
    """None when the folder has no tokenizer; CheckpointError when it has one that does not load."""
    if not any((folder / name).is_file() for name in _FILES):
        return None
    # The package replaces itself in sys.modules while it loads. Where another thread is loading it, the first import
    # waits for that and gets the old module, which lacks the name; the second one finds the new module.
    import transformers  # noqa: F401
    from transformers import AutoTokenizer

    try:
        hf_tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # transformers and tokenizers raise many kinds here; the first line says what is wrong
        first_line = next(iter(str(error).splitlines()), type(error).__name__)
        raise CheckpointError(f"{folder}: tokenizer does not load: {first_line}") from error
    return Tokenizer(hf_tokenizer)


def eos_token_ids(folder: Path, config_ids: Iterable[int], tokenizer: Tokenizer | None) -> tuple[int, ...]:
    """Union of what config, generation config and tokenizer call end of sequence. Raises CheckpointError."""
    ids = {*config_ids}
    path = folder / "generation_config.json"
    if path.is_file():
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise CheckpointError(f"{path}: broken JSON: {error}") from error
        found = config.get("eos_token_id") if isinstance(config, dict) else config
        more = found if isinstance(found, list) else [] if found is None else [found]
        if not isinstance(config, dict) or not all(type(token_id) is int for token_id in more):
            raise CheckpointError(f"{path}: eos_token_id: {found!r} (a token id or a list of them)")
        ids.update(more)
    if tokenizer is not None and tokenizer.eos_token_id is not None:
        ids.add(tokenizer.eos_token_id)
    return tuple(sorted(ids))


def _check_unicode(text: str, field: str = "prompt") -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RequestError(field, text, f"valid Unicode; character {error.start} is a lone surrogate") from error
