"""Texts and prompts to profile: documents of .txt files, prompts of .jsonl files; either may be compressed (.gz)."""

import gzip
import json
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from smoe.core.errors import ConfigError

PROMPT_FIELDS = ("prompt", "question", "text", "turns")
_FILE_HEADER = re.compile(r"(?:\A|\n\n\n)(?=# file: )")
_BLANK_LINES = re.compile(r"\n(?:[ \t\r]*\n)+")


@dataclass(frozen=True, slots=True)
class Document:
    """`label` is the file's name up to its first dot."""

    label: str
    text: str


def read_documents(paths: Sequence[Path]) -> list[Document]:
    """All of them, in order. Raises ConfigError naming file and line for what cannot be read, or holds nothing.

    A .txt file is cut at `# file:` lines after two blank ones where there are any, else at blank lines. Of a line of
    a .jsonl file the first of PROMPT_FIELDS counts, and of `turns` the first.
    """
    documents: list[Document] = []
    for path in paths:
        suffixes = path.name.removesuffix(".gz").rpartition(".")[2]
        if suffixes not in ("txt", "jsonl"):
            raise ConfigError("data", str(path), "a .txt, .txt.gz, .jsonl or .jsonl.gz file")
        text = _read(path)
        label = path.name.partition(".")[0]
        texts = split_text(text) if suffixes == "txt" else _prompts(path, text)
        if not texts:
            raise ConfigError("data", str(path), "a file with text in it: there is none")
        documents += [Document(label, piece) for piece in texts]
    return documents


def split_text(text: str) -> list[str]:
    pattern = _FILE_HEADER if _FILE_HEADER.search(text) else _BLANK_LINES
    return [piece.strip("\r\n") for piece in pattern.split(text) if piece.strip()]


def _read(path: Path) -> str:
    try:
        data = path.read_bytes()
        if path.name.endswith(".gz"):
            data = gzip.decompress(data)
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError("data", str(path), f"line {line}: byte {data[error.start]:#04x} is not UTF-8") from error
    except (OSError, EOFError, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ConfigError("data", str(path), f"a readable file: {reason}") from error


def _prompts(path: Path, text: str) -> list[str]:
    prompts = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ConfigError("data", str(path), f"line {number}: no JSON: {error}") from error
        field = next((name for name in PROMPT_FIELDS if isinstance(row, dict) and name in row), None)
        if field is None:
            limit = f"line {number}: an object with one of the fields {', '.join(PROMPT_FIELDS)}"
            raise ConfigError("data", str(path), limit)
        value = row[field]
        if field == "turns" and isinstance(value, list) and value:
            value = value[0]
        if not isinstance(value, str) or not value.strip():
            raise ConfigError("data", str(path), f"line {number}: {field}: {str(value)[:40]!r} is no text")
        prompts.append(value)
    return prompts
