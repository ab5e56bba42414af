"""Points of the grid carried out, those of one trace side by side. Torch-free."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import zip_longest

from smoe.bench.cache.grid import OPEN, Point
from smoe.bench.cache.open_pool import OpenPool
from smoe.bench.cache.rows import Row, row
from smoe.core.expert_memory import ExpertMemory
from smoe.core.route_trace import RouteTrace
from smoe.offload.policies.catalog import Geometry
from smoe.offload.policies.future import Future
from smoe.offload.policies.spec import parse_policies
from smoe.sim import passes
from smoe.sim.runs import InstantRun, Setting, SteppedRun, play
from smoe.sim.simulate import start

MOST_TOGETHER, FEWEST_GROUPS = 26, 20
"""Points of a group: enough to share the making of passes, few enough for progress to be seen and cores to be busy."""

Traces = Mapping[str, RouteTrace]


def groups(points: Sequence[Point]) -> list[list[int]]:
    """Indices of points that run side by side, traces taking turns so that a rest can be foreseen from what is done."""
    most = max(1, min(MOST_TOGETHER, len(points) // FEWEST_GROUPS))
    by_trace: dict[tuple[str, str], list[list[int]]] = defaultdict(list)
    for index, point in enumerate(points):
        made = by_trace[point.trace, point.mode]
        if not made or len(made[-1]) == most:
            made.append([])
        made[-1].append(index)
    turns = zip_longest(*by_trace.values())
    return [group for turn in turns for group in turn if group is not None]


def run_points(points: Sequence[Point], traces: Traces) -> list[Row]:
    """All of one trace and mode."""
    trace, mode = traces[points[0].trace], points[0].mode
    knows = any(parse_policies(point.policy).needs_future for point in points)
    future = passes.future(trace, mode, 1) if knows else None
    runs = [_start(point, trace, future) for point in points]
    play(trace, runs)
    results = [run.result() for run in runs]
    return [row(p, r.experts, r.transfers, r.tokens) for p, r in zip(points, results, strict=True)]


def _start(point: Point, trace: RouteTrace, future: Future | None) -> InstantRun | SteppedRun:
    if point.pool != "open":
        # Half a slot on top: a fraction of slots a layer is rounded down to whole slots in all.
        memory = ExpertMemory("slots", (point.num_slots + 0.5) / len(trace.layers))
        return start(trace, point.policy, memory, pool=point.pool, mode=point.mode, future=future)
    geometry = Geometry(layers=trace.layers, num_experts=trace.num_experts, top_k=trace.top_k)
    policies = parse_policies(point.policy).build(geometry, future=future)
    setting = Setting(
        policy=point.policy,
        capacity=f"{point.percent:g}%",
        pool=OPEN,
        mode=point.mode,
        batch=1,
        num_slots=point.num_slots,
        expert_bytes=0,
    )
    return InstantRun(setting, trace, OpenPool(point.num_slots, policies, trace.layers))
