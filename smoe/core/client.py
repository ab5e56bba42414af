"""EngineClient: the one face of an engine that command line, server, benchmarks and library see."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from smoe.core.model_info import ModelInfo
from smoe.core.request import Delta, Request
from smoe.core.stats import EngineStats
from smoe.core.step import ExpertsMoved


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """running: steps run when there is work. restarting: devices were lost and are being replaced; requests are taken,
    wait, and go on where they were. failed: nothing will run any more. `detail` says why it is not running."""

    phase: Literal["running", "restarting", "failed"]
    detail: str | None = None


class EngineClient(Protocol):
    """Whether one process or a cluster is behind it makes no difference to the caller.

    Calls may come from any thread, except that only one thread polls. After `shutdown` every call raises
    RuntimeError.
    """

    def info(self) -> ModelInfo:
        """The loaded model. Does not change over the life of the client."""
        ...

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests. Raises RequestError (and queues none of them) when one cannot ever run."""
        ...

    def abort(self, request_ids: Sequence[str]) -> None:
        """End requests early; each unfinished one yields a last delta with finish_reason `abort`.

        Unknown ids are ignored.
        """
        ...

    def poll(self, timeout_s: float | None = None) -> list[Delta]:
        """Deltas since the last call, in the order they happened; waits for at least one.

        Returns an empty list after `timeout_s`, or at once when no request is in flight.
        """
        ...

    def decode_text(self, token_ids: Sequence[int]) -> str | None:
        """Text of token ids, or None when the model folder has no tokenizer."""
        ...

    def encode_text(self, text: str) -> list[int]:
        """Token ids of text. Raises RequestError when the model folder has no tokenizer."""
        ...

    def encode_chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Token ids of a conversation under the model's chat template. Raises RequestError without tokenizer."""
        ...

    def stats(self) -> EngineStats:
        """May wait for a step to end, and so as long as devices that do not answer are waited for."""
        ...

    def health(self) -> EngineHealth:
        """At once, also while devices are silent or have failed."""
        ...

    def resize_experts(self, memory: str) -> int:
        """Between two steps: from now on experts may take `memory`, in the words of `expert_memory`; slots over all
        layers. An engine that is restarted begins again with its `expert_memory`.

        Raises ConfigError above `expert_memory_max`, or without it, and below one expert a layer: nothing has changed.
        """
        ...

    def apply_placement(self, folder: str) -> ExpertsMoved:
        """Between two steps, on all devices or on none: from now on experts lie, and tokens go, as the placement in
        `folder` says, which is read here. Requests in flight go on; an engine that loses a device goes back to it.

        Raises ConfigError, PlacementError or CapacityError: nothing has changed.
        """
        ...

    def shutdown(self) -> None:
        """Stop workers and free memory; requests in flight end with `abort`. Idempotent."""
        ...
