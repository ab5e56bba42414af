"""Parameters of policies: each reads one value strictly and writes it back so that it reads the same."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from smoe.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Word:
    """One of some words, the first by default; may be written bare (`lru:no-touch`)."""

    choices: Sequence[str]

    @property
    def default(self) -> str:
        return self.choices[0]

    def read(self, field: str, value: Any) -> str:
        if value not in self.choices:
            raise ConfigError(field, value, f"one of {', '.join(self.choices)}")
        return str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """From `low` to `high`; `open_low` leaves `low` itself out. A default of None is worked out from the model."""

    low: float
    high: float
    default: float | None = None
    open_low: bool = False
    integer: bool = False

    def read(self, field: str, value: Any) -> float | int:
        kind = "an integer" if self.integer else "a number"
        limit = f"{kind} {'above' if self.open_low else 'from'} {self.low:g} up to {self.high:g}"
        try:
            number = float(value) if not isinstance(value, bool) else math.nan
        except (TypeError, ValueError):
            number = math.nan
        inside = self.low < number <= self.high if self.open_low else self.low <= number <= self.high
        if not inside or (self.integer and number != int(number)):
            raise ConfigError(field, value, limit)
        return int(number) if self.integer else number


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A path without `,` and `:`; whether the file can be read is seen when the policy is made."""

    default: None = None

    def read(self, field: str, value: Any) -> str:
        if not isinstance(value, str) or not value.strip() or set(value) & set(",:"):
            raise ConfigError(field, value, "a path to a file, without , and :")
        return value


Param = Word | Number | File


def write(value: Any) -> str:
    return repr(value) if isinstance(value, float) else str(value)
