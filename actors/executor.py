"""RayExecutor: the shards of one model, seen as one Executor."""

import contextlib
import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

from smoe.actors.links import Link, ShardsLost
from smoe.actors.shard import ShardReady
from smoe.core.errors import ConfigError, SmoeError
from smoe.core.model_info import ModelInfo
from smoe.core.placement import Placement
from smoe.core.stats import ExecutorStats
from smoe.core.step import Executor, ExpertsMoved, SampledToken, StepPlan, StepResult, Substituted
from smoe.engine.rss import Rss


class RayExecutor:
    """Every rank gets the same plan. Each data-parallel group is `ranks_per_group` of them; the first one samples, and
    its answer counts for the spans of the group.

    Methods may be called from any thread: a lock keeps one message in flight, so `stats` waits for the step.
    """

    def __init__(self, ready: ShardReady, link: Link, *, ranks_per_group: int) -> None:
        self._ready, self._link = ready, link
        self._ranks_per_group = ranks_per_group
        self._lock = threading.Lock()
        self._before = self._own = ExecutorStats()

    def count_from(self, earlier: Executor) -> None:
        """Goes on from the counts of the executor that this one replaces, so that they never run backwards."""
        self._before = earlier.stats()

    def info(self) -> ModelInfo:
        return self._ready.info

    @property
    def kv_rows(self) -> int:
        return self._ready.kv_rows

    def execute(self, plan: StepPlan) -> StepResult:
        with self._lock:
            results: list[StepResult] = self._link.call("execute", plan)
        return merged(plan, results, self._ranks_per_group)

    def stats(self) -> ExecutorStats:
        """Of all ranks together, levels too. Once the shards are lost: what they said last."""
        with self._lock:
            with contextlib.suppress(ShardsLost):  # whoever executes next learns of it
                self._own = reduce(ExecutorStats.plus, self._link.call("stats"))
            return self._own.after(self._before)

    def resize_experts(self, memory: str) -> int | ConfigError:
        with self._lock:
            found: list[int | ConfigError] = self._link.call("resize_experts", memory)
        assert len({str(answer) for answer in found}) == 1, "every rank decides for all of them"
        return found[0]

    def apply_placement(self, placement: Placement, name: str) -> ExpertsMoved | SmoeError:
        with self._lock:
            answers: list[ExpertsMoved | SmoeError] = self._link.call("apply_placement", placement, name)
        moved = [answer for answer in answers if isinstance(answer, ExpertsMoved)]
        if len(moved) < len(answers):
            return next(answer for answer in answers if isinstance(answer, SmoeError))
        return ExpertsMoved(experts=sum(m.experts for m in moved), nbytes=sum(m.nbytes for m in moved))

    def rss(self) -> Rss:
        """Of all shard processes together."""
        with self._lock:
            found: list[Rss] = self._link.call("rss")
        return reduce(Rss.plus, found)

    def check_integrity(self) -> None:
        with self._lock:
            self._link.call("check_integrity")

    def shutdown(self) -> None:
        """Ends the executors of living shards; closing the link does not wait for dead ones."""
        with self._lock:
            self._link.call("shutdown")
        self._link.close()


def merged(plan: StepPlan, by_rank: Sequence[StepResult], ranks_per_group: int) -> StepResult:
    """Each span's answer from the first rank of the group that computed it; what was replaced for it on all ranks.

    A span that is not a number because some rank could not read an expert ends with that as its error.
    """
    if len(by_rank) == 1:
        return by_rank[0]
    tokens = [by_rank[span.group * ranks_per_group].tokens[i] for i, span in enumerate(plan.spans)]
    unread = next((result.unread for result in by_rank if result.unread is not None), None)
    if unread is not None:
        tokens = [tuple(_because(token, unread) for token in answer) for answer in tokens]
    told = [result.substituted for result in by_rank if result.substituted]
    substituted = [Substituted(sum(s.slots for s in of), sum(s.mass for s in of)) for of in zip(*told, strict=True)]
    return StepResult(tokens=tuple(tokens), substituted=tuple(substituted), unread=unread)


def _because(token: SampledToken, unread: str) -> SampledToken:
    numeric = token.error is not None and token.error.startswith("numeric")
    return replace(token, error=f"store: {unread}") if numeric else token
