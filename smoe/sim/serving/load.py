"""What a step asks of the hardware, in numbers that its time can be told from."""

from dataclasses import dataclass

from smoe.core.step import StepPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLoad:
    """Of one step. A span decodes if it samples and has one token, as the scheduler has it (so does what is left of a
    prompt, if it is one token); drafted tokens are rows of it, all of them verified. Every other span is of a prompt.

    `..._pairs`: (row, row of its context, itself included) whose attention is computed; `kv_rows`: rows of contexts
    that are read, each sequence's once. `sampled` rows go through the head. `draft_steps`: tokens that the draft was
    asked for one after the other, all sequences together.
    """

    prefill_tokens: int = 0
    prefill_pairs: int = 0
    decode_rows: int = 0
    decode_pairs: int = 0
    kv_rows: int = 0
    sequences: int = 0
    sampled: int = 0
    draft_steps: int = 0

    @property
    def rows(self) -> int:
        return self.prefill_tokens + self.decode_rows

    @classmethod
    def of(cls, plan: StepPlan) -> "StepLoad":
        prefill_tokens = prefill_pairs = decode_rows = decode_pairs = kv_rows = sampled = draft_steps = 0
        for span in plan.spans:
            rows, past = len(span.token_ids), span.past
            kv_rows += past + rows
            if span.sample is None or rows > 1:
                prefill_tokens += rows
                prefill_pairs += rows * past + rows * (rows + 1) // 2
                sampled += span.sample is not None
                continue
            rows += span.draft_limit
            kv_rows += span.draft_limit
            decode_rows += rows
            decode_pairs += rows * past + rows * (rows + 1) // 2
            sampled += rows
            draft_steps = max(draft_steps, span.draft_limit)
        return cls(
            prefill_tokens=prefill_tokens,
            prefill_pairs=prefill_pairs,
            decode_rows=decode_rows,
            decode_pairs=decode_pairs,
            kv_rows=kv_rows,
            sequences=len(plan.spans),
            sampled=sampled,
            draft_steps=draft_steps,
        )
