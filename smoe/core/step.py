"""What the scheduler asks of the devices in one step, and what they answer. Plain and picklable."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from smoe.core.errors import ConfigError, SmoeError
from smoe.core.model_info import ModelInfo
from smoe.core.request import TokenLogprob
from smoe.core.sampling import SamplingParams
from smoe.core.stats import DraftStats, ExecutorStats

if TYPE_CHECKING:  # what is behind it, numpy, would be loaded for every verb
    from smoe.core.placement import Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanPlan:
    """Consecutive new tokens of one sequence.

    `kv_start` is the sequence's first row in the KV arena and `past` the rows already filled, so the new rows land
    at kv_start + past. `state_slot` names its recurrent state (Qwen3-Next); a span with past = 0 starts from a
    zero state. `sample` is set when the last row's logits choose a token: the parameters, and in
    `sample_index` how many tokens the request has generated so far (with the seed it fixes the random number).
    `prompt_len` is the length of the whole prompt, of which this may be a chunk: positions that stretch with the
    length (longrope) go by it. `group` is the data-parallel group that computes it, in whose memory its rows are.
    `draft_limit` is how many tokens beyond the sampled one may be answered, drafted and found right in the same step;
    the sequence owns rows for them all.
    """

    request_id: str
    state_slot: int
    kv_start: int
    past: int
    token_ids: tuple[int, ...]
    sample: SamplingParams | None = None
    sample_index: int = 0
    seed: int = 0
    prompt_len: int = 0
    record: bool = False
    group: int = 0
    draft_limit: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    spans: tuple[SpanPlan, ...]


@dataclass(frozen=True, slots=True)
class SampledToken:
    """Exactly one of `token_id` and `error` is set; `error` is "numeric: ..." or "store: ..."."""

    token_id: int | None
    logprob: TokenLogprob | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Substituted:
    """Router choices computed by another expert, and their weights, each normalised over its row's choices."""

    slots: int
    mass: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """`tokens[i]` answers `plan.spans[i]`: one token where it samples, and up to `draft_limit` more, each but the last
    also computed, its row filled. Empty for a span that samples nothing and met no error; an error comes last.

    `substituted[i]` says what a lossy expert policy changed for it, over all layers and rows; empty when nothing.
    `unread` is what one rank of several could not read: rows that needed it are not numbers on any rank.
    `draft` counts this step's drafting, if there was any.
    """

    tokens: tuple[tuple[SampledToken, ...], ...]
    substituted: tuple[Substituted, ...] = ()
    unread: str | None = None
    draft: DraftStats | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsMoved:
    """What a placement took: experts that came to a device from another one, and their bytes."""

    experts: int
    nbytes: int


class Executor(Protocol):
    """Runs steps on the devices that hold the model: one process, or a group of Ray shards."""

    def info(self) -> ModelInfo: ...

    @property
    def kv_rows(self) -> int:
        """Rows of the KV arena that sequences may use: of one group's, where there are several."""
        ...

    def execute(self, plan: StepPlan) -> StepResult:
        """Runs one step. An error of one span is in its result; an exception means the devices are lost."""
        ...

    def stats(self) -> ExecutorStats: ...

    def resize_experts(self, memory: str) -> int | ConfigError:
        """Between steps: from now on experts may take `memory`. Slots over all layers, or why it stays as it was."""
        ...

    def apply_placement(self, placement: "Placement", name: str) -> ExpertsMoved | SmoeError:
        """Between steps: from now on experts lie, and tokens go, as `placement` says; errors call it `name`.

        Returns why everything stays as it was: a ConfigError, PlacementError or CapacityError. An exception means that
        the devices are lost.
        """
        ...

    def check_integrity(self) -> None:
        """Raises RuntimeError when an invariant of caches or transfers is broken; called when idle."""
        ...

    def shutdown(self) -> None: ...
