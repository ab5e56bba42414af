"""LLM: the runtime as a library, in this process or through Ray actors."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any, Self

from smoe.answers import Completion, complete
from smoe.core.client import EngineClient
from smoe.core.cluster_config import ClusterConfig
from smoe.core.config import EngineConfig
from smoe.core.errors import ConfigError, RequestError
from smoe.core.model_info import ModelInfo
from smoe.core.request import Delta, Request
from smoe.core.sampling import SamplingParams
from smoe.core.stats import EngineStats
from smoe.core.step import ExpertsMoved
from smoe.inbox import Inbox

Prompt = str | Sequence[int]


class LLM:
    """`model` is `builtin` or a folder as downloaded from Hugging Face; `config` are fields of EngineConfig.

    In this process by default; `distributed=True` runs the same engine in Ray actors (a cluster at RAY_ADDRESS, or a
    local one that is started and stopped with this object). Not thread-safe. Raises ConfigError, CheckpointError,
    CapacityError or StartupError.
    """

    def __init__(self, model: str = "builtin", *, distributed: bool = False, **config: Any) -> None:
        known = [field.name for field in fields(EngineConfig) if field.name != "model"]
        for name, value in config.items():
            if name not in known:
                raise ConfigError(name, value, f"no such field; one of {', '.join(known)}")
        self.client = open_client(EngineConfig(model=model, **config), distributed=distributed)
        self._inbox = Inbox(self.client)
        self._ids = (f"llm-{number}" for number in itertools.count())

    def generate(
        self, prompts: Prompt | Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> list[Completion]:
        """Continues one prompt or several (text or token ids), at the same time; answers in the prompts' order.

        `params` is one for all, or one a prompt. Raises RequestError, before anything runs, when one cannot run.
        """
        requests = self._requests(prompts, params)
        self._inbox.submit(requests)
        return [self._complete(request) for request in requests]

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[Delta]:
        """Pieces of one answer as they come. Leaving the iterator early aborts the request."""
        [request] = self._requests(prompt, params)
        self._inbox.submit([request])
        for _, delta in self._inbox.read(request.request_id):
            yield delta

    def chat(self, messages: Sequence[dict[str, str]], params: SamplingParams | None = None) -> Completion:
        """The assistant's next message under the model's chat template."""
        [answer] = self.generate(self.client.encode_chat(messages), params)
        return answer

    def info(self) -> ModelInfo:
        return self.client.info()

    def stats(self) -> EngineStats:
        return self.client.stats()

    def resize_experts(self, memory: str) -> int:
        """From now on experts may take `memory`, up to `expert_memory_max`; slots over all layers."""
        return self.client.resize_experts(memory)

    def apply_placement(self, folder: str) -> ExpertsMoved:
        """On several devices, between two steps: experts move to where the placement in `folder` says."""
        return self.client.apply_placement(folder)

    def close(self) -> None:
        """Stops workers and frees memory. Idempotent; every other call raises RuntimeError afterwards."""
        self.client.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _requests(
        self, prompts: Prompt | Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None
    ) -> list[Request]:
        listed = _as_list(prompts)
        each = (
            [params or SamplingParams()] * len(listed)
            if params is None or isinstance(params, SamplingParams)
            else params
        )
        if len(each) != len(listed):
            raise RequestError("params", f"{len(each)} entries", f"one, or as many as prompts: {len(listed)}")
        return [
            Request(request_id=next(self._ids), prompt_token_ids=self._encode(prompt), params=one)
            for prompt, one in zip(listed, each, strict=True)
        ]

    def _encode(self, prompt: Prompt) -> tuple[int, ...]:
        return tuple(self.client.encode_text(prompt) if isinstance(prompt, str) else prompt)

    def _complete(self, request: Request) -> Completion:
        return complete(
            request.prompt_token_ids,
            self._inbox.read(request.request_id),
            text=self.client.info().has_tokenizer,
            logprobs=request.params.logprobs is not None,
        )


def open_client(config: EngineConfig, *, distributed: bool, cluster: ClusterConfig | None = None) -> EngineClient:
    """An engine in this process, or in Ray actors that lie as `cluster` says.

    Raises ConfigError, CheckpointError, CapacityError, StartupError.
    """
    if distributed:
        from smoe.actors.client import open_ray_client

        return open_ray_client(config, cluster)
    from smoe.engine.build import build_local_client

    return build_local_client(config)


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], int)):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]
