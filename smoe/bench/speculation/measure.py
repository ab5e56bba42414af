"""Decoding by one method, a prompt or a batch at a time."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from smoe.core.client import EngineClient
from smoe.core.config import EngineConfig
from smoe.core.request import Request
from smoe.core.sampling import SamplingParams
from smoe.core.stats import DraftStats, ExpertStats
from smoe.offload.bank import OffloadedBank


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """`tokens` of all sequences came in `decode_s` after the first ones; `answers` are the token ids, by sequence.
    Counts are those of the whole run but for its prefill."""

    sequences: int
    tokens: int
    decode_s: float
    experts: ExpertStats
    draft: DraftStats
    answers: tuple[tuple[int, ...], ...]

    @property
    def tpot_s(self) -> float:
        """Seconds a token of each sequence."""
        return self.decode_s * self.sequences / self.tokens

    @property
    def hit_rate(self) -> float:
        """Experts resident when asked for, of all that were."""
        experts = self.experts
        return experts.hits / max(1, experts.hits + experts.late + experts.misses)

    @property
    def hidden_share(self) -> float:
        """Transfer time in which no pass waited."""
        return max(0.0, 1 - self.experts.wait_s / max(1e-9, self.experts.transfer_s))

    def plain(self) -> dict[str, Any]:
        return asdict(self)


class Engine:
    def __init__(self, config: EngineConfig) -> None:
        from smoe.engine.build import build_core, build_runner
        from smoe.engine.local import LocalClient

        self.runner = build_runner(config)
        self._client: EngineClient = LocalClient(build_core(config, self.runner))
        self._number = 0
        self._home: list[tuple[int, int]] = []

    @property
    def bank(self) -> OffloadedBank:
        assert isinstance(self.runner.bank, OffloadedBank)
        return self.runner.bank

    def warm(self, prompt: Sequence[int]) -> None:
        self.run([prompt], 8)
        self._home = sorted(self.bank.resident())

    def restore(self) -> None:
        """The experts resident after `warm` are resident again, brought in in the same order."""
        self.bank.refill(self._home)

    def run(self, prompts: Sequence[Sequence[int]], tokens: int) -> Run:
        """Greedy, all prompts at once, `tokens` each."""
        client, params = self._client, SamplingParams(max_tokens=tokens, ignore_eos=True)
        ids = [f"{self._number}-{i}" for i in range(len(prompts))]
        self._number += 1
        client.submit(
            [
                Request(request_id=request_id, prompt_token_ids=tuple(prompt), params=params)
                for request_id, prompt in zip(ids, prompts, strict=True)
            ]
        )
        answers: dict[str, list[int]] = {request_id: [] for request_id in ids}
        left, begun, counted = len(ids), 0.0, 0
        before = client.stats()
        while left:
            for delta in client.poll():
                if delta.finish_reason not in (None, "length"):
                    raise RuntimeError(f"{delta.request_id} ended with {delta.finish_reason}: {delta.error}")
                left -= delta.finish_reason is not None
                answers[delta.request_id] += delta.token_ids
            now = time.perf_counter()
            if not begun and all(answers.values()):
                begun, counted, before = now, sum(map(len, answers.values())), client.stats()
        after = client.stats()
        return Run(
            sequences=len(ids),
            tokens=sum(map(len, answers.values())) - counted,
            decode_s=now - begun,
            experts=after.experts.since(before.experts),
            draft=after.draft.since(before.draft),
            answers=tuple(tuple(answers[request_id]) for request_id in ids),
        )

    def close(self) -> None:
        self._client.shutdown()
