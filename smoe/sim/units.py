"""Numbers with units, as people write them on a command line."""

import math
import re

from smoe.core.errors import ConfigError

_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
_BYTES = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4, "ki": 2**10, "mi": 2**20, "gi": 2**30}


def seconds(field: str, text: str) -> float:
    """`0.1ms`, `20us`, `1s`. Raises ConfigError."""
    limit = "a time with its unit, as 0.1ms"
    match = re.fullmatch(r"([0-9.]+(?:e-?[0-9]+)?)(s|ms|us)", text.strip())
    return _bad(field, text, limit) if match is None else _number(field, text, match[1], limit) * _SECONDS[match[2]]


def byte_count(field: str, text: str) -> float:
    """`12MB`, `2GiB`, `12582912`. Raises ConfigError."""
    match = re.fullmatch(r"([0-9.]+)([kKmMgGtT]?i?)[bB]?", text.strip())
    if match is None or match[2].lower() not in _BYTES:
        return _bad(field, text, "bytes, as 12MB")
    return _number(field, text, match[1], "bytes, as 12MB") * _BYTES[match[2].lower()]


def _number(field: str, text: str, digits: str, limit: str) -> float:
    try:
        value = float(digits)
    except ValueError:
        return _bad(field, text, limit)
    return value if math.isfinite(value) else _bad(field, text, limit)


def _bad(field: str, text: str, limit: str) -> float:
    raise ConfigError(field, text, limit)
