"""An engine in this process whose device does what a test says: tokens by script, steps by permission, faults."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from smoe.core.step import SampledToken, StepPlan, StepResult
from smoe.engine.core import EngineCore
from smoe.engine.local import LocalClient
from smoe.engine.tokenizer import Tokenizer
from tests.actors.fakes import INFO, FakeExecutor

Script = Callable[[Sequence[int], int], SampledToken]
"""The token after a prompt, with so many generated before."""


class ScriptedExecutor(FakeExecutor):
    """`permits` are steps that it may run; none wait for one without `gated`."""

    def __init__(self, script: Script | None = None, *, gated: bool = False, die_after: int | None = None) -> None:
        super().__init__(die_after=die_after)
        self._script, self._gated = script, gated
        self.permits = threading.Semaphore(0)
        self.steps = 0
        self._prompts: dict[str, tuple[int, ...]] = {}

    def execute(self, plan: StepPlan) -> StepResult:
        if self._gated:
            self.permits.acquire()
        self.steps += 1
        result = super().execute(plan)
        if self._script is None:
            return result
        tokens: list[tuple[SampledToken, ...]] = []
        for span in plan.spans:
            if span.past == 0:
                self._prompts[span.request_id] = span.token_ids
            answer = self._script(self._prompts[span.request_id], span.sample_index)
            tokens.append(() if span.sample is None else (answer,))
        return StepResult(tokens=tuple(tokens))

    def allow(self, steps: int) -> None:
        self.permits.release(steps)


class OfTokenizer(ScriptedExecutor):
    """Of a model that has that tokenizer."""

    def __init__(self, script: Script, vocab_size: int) -> None:
        super().__init__(script)
        self._vocab_size = vocab_size

    def info(self):  # type: ignore[no-untyped-def]
        return replace(INFO, vocab_size=self._vocab_size, has_tokenizer=True)


def client_of(executor: FakeExecutor, tokenizer: Tokenizer | None = None) -> LocalClient:
    return LocalClient(EngineCore(executor, tokenizer, max_num_seqs=8, max_num_batched_tokens=64))
