"""Several policies and capacities on one trace."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from smoe.core.link_model import LinkModel
from smoe.core.route_trace import RouteTrace
from smoe.sim.compute import ComputeModel
from smoe.sim.drafts import SimDraft
from smoe.sim.forwards import Mode
from smoe.sim.result import SimResult
from smoe.sim.simulate import Pool, check, simulate


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepItem:
    """The arguments of one `simulate` beside the trace; plain and picklable."""

    policy: str
    capacity: str
    link: LinkModel | None = None
    compute: ComputeModel | None = None
    expert_bytes: int | None = None
    pool: Pool = "layer"
    mode: Mode = "recorded"
    batch: int = 1
    pause_share: float | None = None
    draft: SimDraft | None = None
    seed: int = 0


def run_item(item: SweepItem, trace: RouteTrace, on_progress: Callable[[int], None] | None = None) -> SimResult:
    return simulate(
        trace,
        item.policy,
        item.capacity,
        link=item.link,
        compute=item.compute,
        expert_bytes=item.expert_bytes,
        pool=item.pool,
        mode=item.mode,
        batch=item.batch,
        pause_share=item.pause_share,
        draft=item.draft,
        seed=item.seed,
        on_progress=on_progress,
    )


def check_items(items: Sequence[SweepItem], trace: RouteTrace) -> None:
    """Raises the ConfigError that one of them would raise, before any has run."""
    for item in items:
        check(
            trace,
            item.policy,
            item.capacity,
            link=item.link,
            compute=item.compute,
            expert_bytes=item.expert_bytes,
            pool=item.pool,
            mode=item.mode,
            batch=item.batch,
            draft=item.draft,
        )
