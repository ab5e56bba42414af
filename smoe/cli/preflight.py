"""Everything that can be refused before a model loads or Ray starts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from smoe.core.config import EngineConfig
from smoe.core.errors import RequestError
from smoe.core.model_info import ModelInfo
from smoe.core.request import Request
from smoe.core.sampling import SamplingParams
from smoe.engine.validate import RequestValidator

if TYPE_CHECKING:
    from smoe.engine.tokenizer import Tokenizer
    from smoe.models.loading import Checkpoint


@dataclass(frozen=True, slots=True)
class Preflight:
    """A model folder, read as far as its headers, and the most rows of KV memory that an engine on it will have."""

    kv_rows: int
    info: ModelInfo
    tokenizer: "Tokenizer | None"

    def requests(self, prompts: Sequence[str | tuple[int, ...]], params: SamplingParams) -> list[Request]:
        """Requests that can run. Raises RequestError at the first that cannot."""
        requests = [
            Request(request_id=f"prompt-{index}", prompt_token_ids=self._encode(prompt), params=params)
            for index, prompt in enumerate(prompts)
        ]
        validator = RequestValidator(self.info, self.kv_rows, has_tokenizer=self.tokenizer is not None)
        validator.check(requests, ())
        return requests

    def _encode(self, prompt: str | tuple[int, ...]) -> tuple[int, ...]:
        if not isinstance(prompt, str):
            return prompt
        if self.tokenizer is None:
            raise RequestError("prompt", prompt, "--prompt-token-ids: this model folder has no tokenizer")
        return tuple(self.tokenizer.encode(prompt))


def check(config: EngineConfig) -> Preflight:
    """Raises ConfigError, CheckpointError, PlacementError or CapacityError. Reads headers, no weights."""
    from smoe.engine.device import compute_device
    from smoe.engine.model_facts import planned_model_info
    from smoe.engine.plan import plan_memory
    from smoe.engine.tokenizer import load_tokenizer
    from smoe.models.loading import open_checkpoint

    compute_device(config)
    checkpoint = open_checkpoint(config.model)
    tokenizer = load_tokenizer(checkpoint.folder)
    if config.parallel.size > 1:
        return _check_ranks(checkpoint, config, tokenizer)
    plan = plan_memory(checkpoint, config)
    return Preflight(plan.kv_rows, planned_model_info(checkpoint, plan, tokenizer), tokenizer)


def _check_ranks(checkpoint: "Checkpoint", config: EngineConfig, tokenizer: "Tokenizer | None") -> Preflight:
    """What memory the ranks have is known where they run: here, as if every sequence had room."""
    from smoe.engine.model_facts import model_info
    from smoe.engine.parallel import check_parallel
    from smoe.engine.plan import compute_dtype, context_length

    check_parallel(checkpoint, config)
    dtype, length = compute_dtype(checkpoint.spec, config), context_length(checkpoint.spec, config)
    info = model_info(
        checkpoint,
        tokenizer,
        dtype=dtype,
        max_model_len=length,
        expert_bytes=checkpoint.expert_source(checkpoint.spec.moe_layers[0], 0).assembled_nbytes(dtype),
        dense_bytes=checkpoint.params_nbytes(dtype=dtype),
    )
    return Preflight(config.max_num_seqs * length, info, tokenizer)
