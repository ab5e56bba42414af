"""Bytes of the tokens of a byte-level BPE vocabulary (GPT-2's table, used by most current models)."""

from collections.abc import Callable


def byte_table() -> dict[str, int]:
    """Character in a vocabulary entry -> byte. Printable bytes stand for themselves, others for U+0100 onwards."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


class TokenBytes:
    """token id -> bytes, each looked up once. Special tokens are invisible; unknown ids are empty."""

    def __init__(self, id_to_token: Callable[[int], str | None], special_ids: frozenset[int]) -> None:
        self._id_to_token, self._special = id_to_token, special_ids
        self._table = byte_table()
        self._known: dict[int, bytes] = {}

    def __call__(self, token_id: int) -> bytes:
        known = self._known.get(token_id)
        if known is None:
            known = self._known[token_id] = self._look_up(token_id)
        return known

    def _look_up(self, token_id: int) -> bytes:
        token = None if token_id in self._special else self._id_to_token(token_id)
        if token is None:
            return b""
        if all(char in self._table for char in token):
            return bytes(self._table[char] for char in token)
        return token.encode("utf-8", "replace")  # an added token outside the table is its own text
