"""What an engine's clients ask of its tokenizer."""

from collections.abc import Sequence

from smoe.core.errors import RequestError
from smoe.engine.tokenizer import Tokenizer


class Texts:
    """As EngineClient (smoe.core.client) has it; from any thread."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer

    def decode(self, token_ids: Sequence[int]) -> str | None:
        return None if self._tokenizer is None else self._tokenizer.decode(token_ids)

    def encode(self, text: str) -> list[int]:
        return self._needed("prompt", text).encode(text)

    def encode_chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        return self._needed("messages", messages).encode_chat(messages)

    def _needed(self, field: str, value: object) -> Tokenizer:
        if self._tokenizer is None:
            raise RequestError(field, value, "token ids: this model folder has no tokenizer")
        return self._tokenizer
