"""Which depth of a draft makes the least time a token: all candidates on the same prompts, from the same experts."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from smoe.core.config import EngineConfig
from smoe.core.draft import DraftConfig
from smoe.core.request import Request
from smoe.core.sampling import SamplingParams
from smoe.core.stats import DraftStats
from smoe.engine.build import build_core, build_runner
from smoe.engine.core import EngineCore
from smoe.engine.draft.depth import FixedDepth
from smoe.engine.draft.pace import Pace
from smoe.engine.draft.speculation import Speculation
from smoe.engine.runner import Runner
from smoe.offload.bank import OffloadedBank

CANDIDATES = (1, 2, 4, 6, 8, 12, 16, 20, 24, 32, 48, 64)
_WARM_TOKENS = 16

Prompt = tuple[int, ...]


@dataclass(slots=True)
class DepthResult:
    """Of one depth, 0 without a draft: milliseconds a token of each run, and what was drafted in all of them."""

    depth: int
    tpot_ms: list[float] = field(default_factory=list)
    draft: DraftStats = field(default_factory=DraftStats)

    @property
    def mean_ms(self) -> float:
        return sum(self.tpot_ms) / len(self.tpot_ms)


def candidates(acceptance: float) -> tuple[int, ...]:
    """Depths worth a try: up to the run p / (1 - p) that is expected of a draft right with probability p."""
    run = acceptance / max(1e-9, 1 - acceptance)
    return tuple(depth for depth in CANDIDATES if depth <= max(1, math.floor(run)))


def measure_depths(
    config: EngineConfig,
    draft: DraftConfig,
    prompts: Sequence[Prompt],
    *,
    repeats: int,
    tokens: int,
    depths: Sequence[int] | None = None,
    on_run: Callable[[int, int], None] = lambda done, total: None,
) -> list[DepthResult]:
    """Greedy, one request at a time: depths 0 and 1, and then the candidates that the acceptance at depth 1 leaves, in
    an order that turns with every prompt and repeat; or only `depths`. Raises as build_runner does."""
    most = replace(draft, tokens=CANDIDATES[-1], auto_off=False)
    runner = build_runner(replace(config, draft=most))
    try:
        bench = _Bench(runner, build_core(replace(config, draft=most), runner), prompts, tokens)
        if depths is None:
            first = [DepthResult(0), DepthResult(1)]
            bench.run(first, 1, lambda done: on_run(done, 0))
            one = first[1].draft
            depths = (0, *candidates(one.accepted / max(1, one.drafted)))
        found = [DepthResult(depth) for depth in depths]
        total = len(found) * len(prompts) * repeats
        bench.run(found, repeats, lambda done: on_run(done, total))
        return found
    finally:
        runner.shutdown()


class _Bench:
    def __init__(self, runner: Runner, core: EngineCore, prompts: Sequence[Prompt], tokens: int) -> None:
        assert runner.speculation is not None
        self._speculation: Speculation = runner.speculation
        self._core, self._prompts, self._tokens = core, prompts, tokens
        self._bank = runner.bank if isinstance(runner.bank, OffloadedBank) else None
        self._number = 0
        self._decode(prompts[0], 0, _WARM_TOKENS)
        self._resident = [] if self._bank is None else sorted(self._bank.resident())

    def run(self, results: Sequence[DepthResult], repeats: int, on_run: Callable[[int], None]) -> None:
        turn = 0
        for _ in range(repeats):
            for prompt in self._prompts:
                start = turn % len(results)
                for place, result in enumerate([*results[start:], *results[:start]]):
                    self._restore()
                    before = self._core.stats().draft
                    result.tpot_ms.append(self._decode(prompt, result.depth, self._tokens))
                    result.draft = result.draft.plus(self._core.stats().draft.since(before))
                    on_run(turn * len(results) + place + 1)
                turn += 1

    def _decode(self, prompt: Prompt, depth: int, tokens: int) -> float:
        """Milliseconds a token after the first one."""
        self._speculation.use(Pace(partial(FixedDepth, depth), auto_off=False))
        self._number += 1
        params = SamplingParams(max_tokens=tokens, ignore_eos=True)
        self._core.add([Request(request_id=f"depth-{self._number}", prompt_token_ids=prompt, params=params)])
        first = last = 0.0
        while self._core.has_work:
            if any(delta.token_ids for delta in self._core.step()):
                last = time.perf_counter()
                first = first or last
        return 1e3 * (last - first) / (tokens - 1)

    def _restore(self) -> None:
        """The same experts resident, brought in in the same order, whatever ran before."""
        if self._bank is None:
            return
        self._bank.refill(self._resident)
