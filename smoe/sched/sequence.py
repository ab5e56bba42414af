"""One request on its way through the scheduler."""

from dataclasses import dataclass, field

from smoe.core.sampling import SamplingParams


@dataclass(slots=True, kw_only=True, eq=False)
class Sequence:
    """`token_ids` grows from the prompt; rows [0, past) of them are in the KV arena.

    `max_tokens` has been clipped so that `num_prompt + max_tokens` rows fit the context and the arena. `kv_start`
    and `state_slot` are -1 while it waits. `arrival` numbers the sequences of a scheduler in the order they came;
    `group` is the data-parallel group that has it from then on.
    """

    request_id: str
    token_ids: list[int]
    num_prompt: int
    max_tokens: int
    params: SamplingParams = field(default_factory=SamplingParams)
    seed: int = 0
    record: bool = False
    past: int = 0
    kv_start: int = -1
    state_slot: int = -1
    in_flight: bool = False
    finished: bool = False
    arrival: int = -1
    group: int = 0

    @property
    def num_rows(self) -> int:
        return self.num_prompt + self.max_tokens

    @property
    def num_generated(self) -> int:
        return len(self.token_ids) - self.num_prompt

    @property
    def num_pending(self) -> int:
        """Tokens known but not yet in the KV arena; 1 while it decodes."""
        return len(self.token_ids) - self.past
