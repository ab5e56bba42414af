"""A declared link: bandwidth and latency of one transfer after the other."""

import re
from dataclasses import dataclass

from smoe.core.errors import ConfigError

_BYTES = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "": 1.0}
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
_HELP = "bandwidth and perhaps latency, as 2GB/s or 2GB/s+0.1ms"


@dataclass(frozen=True, slots=True)
class LinkModel:
    """A transfer of n bytes holds the link for `latency_s` + n / `bytes_per_s`. Declared, not measured."""

    bytes_per_s: float
    latency_s: float = 0.0

    @classmethod
    def parse(cls, text: str, field: str = "link") -> "LinkModel":
        """Raises ConfigError."""
        found = re.fullmatch(r"\s*(\d*\.?\d+)\s*([kMGT]i?|)B/s\s*(?:\+\s*(\d*\.?\d+)\s*(s|ms|us)\s*)?", text)
        if found is None:
            raise ConfigError(field, text, _HELP)
        rate = float(found[1]) * _BYTES[found[2]]
        if rate <= 0:
            raise ConfigError(field, text, f"above zero: {_HELP}")
        return cls(rate, float(found[3]) * _SECONDS[found[4]] if found[3] else 0.0)

    def transfer_s(self, nbytes: int) -> float:
        return self.latency_s + nbytes / self.bytes_per_s
