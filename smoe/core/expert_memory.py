"""How much memory experts may take: slots a layer, a fraction, bytes, `all` or `auto`."""

import re
from dataclasses import dataclass
from typing import Literal

from smoe.core.errors import ConfigError

_UNITS = {
    "": 1,
    "K": 1000,
    "M": 1000**2,
    "G": 1000**3,
    "T": 1000**4,
    "KI": 2**10,
    "MI": 2**20,
    "GI": 2**30,
    "TI": 2**40,
}
_HELP = "slots a layer (48), a fraction (0.25 or 25%), bytes (500MB, 2GiB), `all` or `auto`"


@dataclass(frozen=True, slots=True)
class ExpertMemory:
    """`value` is, as `kind` says, slots in each MoE layer, a fraction in (0, 1] of the experts of all layers, or the
    bytes of all layers together (a hard bound); 0 for `all` and `auto`.
    """

    kind: Literal["slots", "fraction", "bytes", "all", "auto"]
    value: float = 0.0

    @classmethod
    def parse(cls, text: str, field: str = "expert_memory") -> "ExpertMemory":
        """Raises ConfigError on anything that is not one of the five forms, or is not above zero."""
        word = text.strip()
        if word in ("all", "auto"):
            return cls("all" if word == "all" else "auto")
        match = re.fullmatch(r"([0-9]*\.?[0-9]+)\s*(%|[kKmMgGtT][iI]?[bB]?|[bB])?", word)
        if not match:
            raise ConfigError(field, text, _HELP)
        number, unit = float(match[1]), match[2] or ""
        if number <= 0:
            raise ConfigError(field, text, f"above zero: {_HELP}")
        if unit == "%" or (not unit and "." in match[1]):
            fraction = number / 100 if unit else number
            if fraction > 1:
                raise ConfigError(field, text, "a fraction is at most 1 (100%)")
            return cls("fraction", fraction)
        if not unit:
            return cls("slots", number)
        return cls("bytes", number * _UNITS[unit.upper().rstrip("B")])

    def slots(
        self,
        *,
        num_layers: int,
        num_experts: int,
        slot_bytes: int,
        free_bytes: int,
        fixed_bytes: int = 0,
        field: str = "expert_memory",
    ) -> int:
        """Whole slots of `slot_bytes` this buys over `num_layers` MoE layers, never more than they have experts.

        `num_experts` counts one layer's experts; `auto` takes `free_bytes`. Of a budget in bytes, `fixed_bytes` are
        spent before the first slot. Raises ConfigError when less than one slot a layer is left.
        """
        total = num_layers * num_experts
        by_kind = {
            "slots": self.value * num_layers,
            "fraction": self.value * total,
            "bytes": (self.value - fixed_bytes) // slot_bytes,
            "all": total,
            "auto": (free_bytes - fixed_bytes) // slot_bytes,
        }
        count = min(int(by_kind[self.kind]), total)
        if count < num_layers:
            given = f"{free_bytes} bytes free" if self.kind == "auto" else f"{self.value:.15g} {self.kind}"
            needed_bytes = fixed_bytes + num_layers * slot_bytes
            limit = f"at least one expert a layer: {num_layers} of {slot_bytes} bytes each, {needed_bytes} in all"
            raise ConfigError(field, given, limit)
        return count
