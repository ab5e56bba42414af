"""A small closed load through an EngineCore whose executor is the ranks: TTFT, TPOT and TBT under a shaped link."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from smoe.bench.comm.cases import Case
from smoe.bench.comm.ranks import Ranks
from smoe.core.errors import ConfigError, SmoeError
from smoe.core.model_info import ModelInfo
from smoe.core.placement import Placement
from smoe.core.request import Request
from smoe.core.sampling import SamplingParams
from smoe.core.stats import ExecutorStats
from smoe.core.step import ExpertsMoved, StepPlan, StepResult
from smoe.engine.core import EngineCore
from smoe.metrics.latency import RequestTimes, itl_s, percentile, tpot_s, ttft_s


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """`concurrency` requests are in flight until all of `requests` are answered; all that `repeats` times."""

    requests: int
    concurrency: int
    prompt_tokens: int
    new_tokens: int
    step_tokens: int = 512
    repeats: int = 1

    @property
    def max_model_len(self) -> int:
        return self.prompt_tokens + self.new_tokens


class RanksExecutor:
    """An Executor: every rank carries out every plan, and rank 0 answers."""

    def __init__(self, ranks: Ranks, case: Case, plan: LoadPlan) -> None:
        self._ranks = ranks
        opened = ranks.ask("open_engine", case, plan.max_model_len, plan.concurrency)
        self._info: ModelInfo = opened[0][0]
        self.kv_rows: int = min(rows for _, rows in opened)

    def info(self) -> ModelInfo:
        return self._info

    def execute(self, plan: StepPlan) -> StepResult:
        result: StepResult = self._ranks.ask("execute", plan)[0]
        return result

    def stats(self) -> ExecutorStats:
        return ExecutorStats()

    def resize_experts(self, memory: str) -> int | ConfigError:
        return ConfigError("expert_memory", memory, "all on several devices")

    def apply_placement(self, placement: Placement, name: str) -> ExpertsMoved | SmoeError:
        return ConfigError("placement", name, "that of the benchmark")

    def check_integrity(self) -> None:
        return

    def shutdown(self) -> None:
        return


def run_load(ranks: Ranks, case: Case, windows: Sequence[tuple[int, ...]], plan: LoadPlan) -> list[RequestTimes]:
    core = EngineCore(
        RanksExecutor(ranks, case, plan),
        None,
        max_num_seqs=plan.concurrency,
        max_num_batched_tokens=plan.step_tokens,
    )
    params = SamplingParams(max_tokens=plan.new_tokens, ignore_eos=True)
    waiting = [
        Request(request_id=str(i), prompt_token_ids=windows[i % len(windows)][: plan.prompt_tokens], params=params)
        for i in range(plan.requests)
    ]
    sent: dict[str, float] = {}
    chunks: dict[str, list[float]] = {}

    def send(count: int) -> None:
        for request in waiting[:count]:
            sent[request.request_id], chunks[request.request_id] = time.monotonic(), []
        core.add(waiting[:count])
        del waiting[:count]

    send(plan.concurrency)
    while core.has_work:
        ended = 0
        for delta in core.step():
            if delta.token_ids:
                chunks[delta.request_id].append(time.monotonic())
            ended += delta.finish_reason is not None
        if ended:
            send(ended)
    return [
        RequestTimes(sent_s=sent[name], chunks_s=tuple(times), num_tokens=len(times)) for name, times in chunks.items()
    ]


def latencies_ms(times: Sequence[RequestTimes]) -> dict[str, float]:
    """Medians over requests of TTFT and TPOT, and the 90th percentile of all gaps between tokens."""
    first = [value for each in times if (value := ttft_s(each)) is not None]
    per_token = [value for each in times if (value := tpot_s(each)) is not None]
    gaps = [gap for each in times for gap in itl_s(each)]
    return {
        "ttft": 1000 * median(first),
        "tpot": 1000 * median(per_token),
        "p90 tbt": 1000 * percentile(gaps, 90),
    }
