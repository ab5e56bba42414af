"""One row of a request trace: Azure's CSV and Mooncake's JSONL. Raises ValueError with the reason."""

import json
from datetime import UTC, datetime

from smoe.workload.request_trace import Arrival

AZURE_HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
MOONCAKE_BLOCK = 512
"""Tokens that one of `hash_ids` stands for."""


def azure_row(line: str) -> Arrival:
    """`2023-11-16 18:15:46.6805900,374,44`; `at_s` are seconds since 1970."""
    cells = line.split(",")
    if len(cells) != 3:
        raise ValueError(f"{len(cells)} columns, not the 3 of {AZURE_HEADER}")
    try:
        at = datetime.fromisoformat(cells[0])
    except ValueError:
        raise ValueError(f"TIMESTAMP {cells[0]!r} is not a date and time") from None
    return Arrival(
        at_s=(at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp(),
        prompt_tokens=_count("ContextTokens", cells[1]),
        output_tokens=_count("GeneratedTokens", cells[2]),
    )


def mooncake_row(line: str) -> Arrival:
    """`{"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [...]}`; other keys are left alone."""
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(row, dict):
        raise ValueError(f"not a JSON object: {line[:40]!r}")
    missing = [key for key in ("timestamp", "input_length", "output_length") if key not in row]
    if missing:
        raise ValueError(f"no {missing[0]}")
    at = row["timestamp"]
    if isinstance(at, bool) or not isinstance(at, int | float) or not 0 <= at < float("inf"):
        raise ValueError(f"timestamp {at!r} is not a number of milliseconds")
    prompt = _count("input_length", row["input_length"])
    blocks = row.get("hash_ids", [])
    if not isinstance(blocks, list) or not all(isinstance(block, int) and block >= 0 for block in blocks):
        raise ValueError(f"hash_ids {str(blocks)[:40]} are not a list of integers >= 0")
    needed = -(-prompt // MOONCAKE_BLOCK)
    if blocks and len(blocks) != needed:
        raise ValueError(f"{len(blocks)} hash_ids; {prompt} tokens have {needed} blocks of {MOONCAKE_BLOCK}")
    return Arrival(
        at_s=at / 1000,
        prompt_tokens=prompt,
        output_tokens=_count("output_length", row["output_length"]),
        blocks=tuple(blocks),
    )


def _count(field: str, value: object) -> int:
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{field} {value!r} is not an integer above 0")
    return value
