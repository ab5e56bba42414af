"""What tests of serving in virtual time share."""

from collections.abc import Sequence
from dataclasses import dataclass

from smoe.sched.scheduler import Scheduler
from smoe.sim.serving.load import StepLoad
from smoe.workload.request_trace import Arrival


@dataclass(frozen=True)
class Linear:
    """A LoadCost by hand: so much a step, a prompt's token and a decoding row."""

    step_s: float = 1.0
    prefill_s: float = 0.0
    decode_s: float = 0.0

    def of(self, load: StepLoad) -> float:
        return self.step_s + self.prefill_s * load.prefill_tokens + self.decode_s * load.decode_rows


def scheduler(kv_rows: int = 1000, seqs: int = 8, tokens: int = 64, drafts: int = 0) -> Scheduler:
    return Scheduler(kv_rows=kv_rows, max_num_seqs=seqs, max_num_batched_tokens=tokens, draft_tokens=drafts)


def arrivals(*each: tuple[float, int, int]) -> list[Arrival]:
    """(at, prompt, output) of each."""
    return [Arrival(at_s=at, prompt_tokens=prompt, output_tokens=output) for at, prompt, output in each]


def steps_of(records: Sequence) -> list[tuple[float, ...]]:
    return [record.chunk_s for record in records]
