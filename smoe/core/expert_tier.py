"""Where experts are kept that are not resident: on disk, in host memory, or on disk with a part in host memory."""

from dataclasses import dataclass
from typing import Literal

from smoe.core.errors import ConfigError
from smoe.core.expert_memory import ExpertMemory

FIELD = "expert_tier"
DEFAULT_TIER = "disk"
_HELP = "disk, host (all experts in host memory) or host:BYTES (host:2GiB of them, the rest on disk)"


@dataclass(frozen=True, slots=True)
class ExpertTier:
    """With `host_memory`, a hard bound in bytes, host memory keeps a part of what is on disk; None with `host` is all.

    Of `disk` host memory keeps nothing.
    """

    kind: Literal["disk", "host"]
    host_memory: ExpertMemory | None = None

    @classmethod
    def parse(cls, text: str) -> "ExpertTier":
        """Raises ConfigError."""
        word, colon, given = text.strip().partition(":")
        if word == "disk" and not colon:
            return cls("disk")
        if word == "host" and not colon:
            return cls("host")
        if word != "host":
            raise ConfigError(FIELD, text, _HELP)
        try:
            memory = ExpertMemory.parse(given, FIELD)
        except ConfigError:
            raise ConfigError(FIELD, text, _HELP) from None
        # A bare number would be slots to `expert_memory`; here it cannot be meant as anything but bytes.
        if memory.kind == "slots":
            memory = ExpertMemory("bytes", memory.value)
        if memory.kind != "bytes":
            raise ConfigError(FIELD, text, _HELP)
        return cls("host", memory)

    @property
    def tiers(self) -> tuple[str, ...]:
        """Those that experts are fetched from, the farthest first."""
        if self.kind == "disk":
            return ("disk",)
        return ("host",) if self.host_memory is None else ("disk", "host")
