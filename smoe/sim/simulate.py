"""One trace, one combination of policies, one capacity: what the engine would have counted."""

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from smoe.core.errors import ConfigError
from smoe.core.expert_memory import ExpertMemory
from smoe.core.link_model import LinkModel
from smoe.core.route_trace import RouteTrace
from smoe.offload.cache import Residency
from smoe.offload.costs import FixedCosts
from smoe.offload.planner import Planner
from smoe.offload.policies.catalog import Geometry
from smoe.offload.policies.future import Future
from smoe.offload.policies.protocols import Costs, PolicySet
from smoe.offload.policies.spec import PolicySpec, parse_policies
from smoe.sim import passes
from smoe.sim.compute import ComputeModel
from smoe.sim.drafts import SimDraft
from smoe.sim.forwards import MODES, Mode
from smoe.sim.instant import InstantCache, works_for
from smoe.sim.link import Link
from smoe.sim.result import SimResult
from smoe.sim.runs import InstantRun, Setting, SteppedRun, play
from smoe.sim.stacked import HostPart, StackedCosts, StackedLink

Pool = Literal["layer", "shared"]
POOLS: tuple[Pool, ...] = ("layer", "shared")


def simulate(
    trace: RouteTrace,
    policy: str | PolicySpec,
    capacity: str | ExpertMemory,
    *,
    link: LinkModel | None = None,
    compute: ComputeModel | None = None,
    expert_bytes: int | None = None,
    pool: Pool = "layer",
    mode: Mode = "recorded",
    batch: int = 1,
    max_background: int | None = None,
    pause_share: float | None = None,
    costs: Costs | None = None,
    host: HostPart | None = None,
    draft: SimDraft | None = None,
    seed: int = 0,
    on_progress: Callable[[int], None] | None = None,
) -> SimResult:
    """Replays the whole trace from an empty cache.

    `capacity` is what `expert_memory` is to the engine (more than all experts is all of them); `pool` says whether its
    slots are dealt to the layers evenly or shared above one a layer. `expert_bytes` is the size of one expert: needed
    for a capacity in bytes, and for a link. Without a link transfers take no time and there are no times in the result.
    `max_background` and `pause_share` are the Planner's; by default prefetching never pauses itself here. `costs` are
    what miss=auto compares, by default those of `link` and `compute`. Every expert can be computed in place, unless
    there is a `host` part: then `link` is from host memory, which keeps no more than that, and the result's bytes from
    the disk are those of what it lacked. With a `draft` single tokens become windows.
    `on_progress` gets the tokens done so far. Raises ConfigError.
    """
    run = start(
        trace,
        policy,
        capacity,
        link=link,
        compute=compute,
        expert_bytes=expert_bytes,
        pool=pool,
        mode=mode,
        batch=batch,
        max_background=max_background,
        pause_share=pause_share,
        costs=costs,
        host=host,
        draft=draft,
        seed=seed,
    )
    play(trace, [run], on_progress)
    return run.result()


def start(
    trace: RouteTrace,
    policy: str | PolicySpec,
    capacity: str | ExpertMemory,
    *,
    link: LinkModel | None = None,
    compute: ComputeModel | None = None,
    expert_bytes: int | None = None,
    pool: Pool = "layer",
    mode: Mode = "recorded",
    batch: int = 1,
    max_background: int | None = None,
    pause_share: float | None = None,
    costs: Costs | None = None,
    host: HostPart | None = None,
    draft: SimDraft | None = None,
    seed: int = 0,
    future: Future | None = None,
) -> InstantRun | SteppedRun:
    """A simulation for `play`. `future` spares working out again what several runs of one mode and batch have in
    common."""
    checked = check(
        trace,
        policy,
        capacity,
        link=link,
        compute=compute,
        expert_bytes=expert_bytes,
        pool=pool,
        mode=mode,
        batch=batch,
        host=host,
        draft=draft,
        seed=seed,
        future=future,
        need_future=True,
    )
    num_slots, layers, policies = checked.num_slots, trace.layers, checked.policies
    floor = num_slots // len(layers) if pool == "layer" else 1
    setting = Setting(
        policy=str(checked.spec),
        capacity=capacity if isinstance(capacity, str) else f"{checked.memory.value:g} {checked.memory.kind}",
        pool=pool,
        mode=mode,
        batch=batch,
        num_slots=num_slots,
        expert_bytes=expert_bytes or 0,
    )
    if link is None and pause_share is None and draft is None and works_for(policies):
        cache = InstantCache(num_slots, layers, policies, floor=floor, max_background=max_background)
        return InstantRun(setting, trace, cache)
    residency = Residency(num_slots, layers, policies.eviction, floor=floor)
    compute = compute or ComputeModel()
    fetch_s = 0.0 if link is None else link.transfer_s(setting.expert_bytes)
    carrier, hold = Link(fetch_s), _hold_all
    usual: Costs = FixedCosts(fetch_s, compute.in_place_row_s, compute.row_s)
    if host is not None:
        stacked = StackedLink(
            Geometry(layers=layers, num_experts=trace.num_experts, top_k=trace.top_k),
            host.fraction,
            hit_s=fetch_s,
            miss_s=host.miss.transfer_s(setting.expert_bytes),
        )
        carrier, hold, usual = stacked, stacked.hold, StackedCosts(stacked, compute.in_place_row_s, compute.row_s)
    planner = Planner(
        residency,
        policies,
        layers,
        max_background=max_background,
        pause_share=pause_share,
        hold=hold,
        costs=costs or usual,
        plan_order="deadline" if draft is None else draft.order,
        max_planned=None if draft is None else draft.max_planned,
        rolling=None if draft is None else draft.rolling,
    )
    return SteppedRun(
        setting, trace, residency, planner, carrier, compute, timed=link is not None, draft=draft, seed=seed
    )


def _hold_all(layer: int, experts: Sequence[int]) -> frozenset[int]:
    return frozenset(experts)


class Checked(NamedTuple):
    spec: PolicySpec
    memory: ExpertMemory
    num_slots: int
    policies: PolicySet


def check(
    trace: RouteTrace,
    policy: str | PolicySpec,
    capacity: str | ExpertMemory,
    *,
    link: LinkModel | None = None,
    compute: ComputeModel | None = None,
    expert_bytes: int | None = None,
    pool: Pool = "layer",
    mode: Mode = "recorded",
    batch: int = 1,
    host: HostPart | None = None,
    draft: SimDraft | None = None,
    seed: int = 0,
    future: Future | None = None,
    need_future: bool = False,
) -> Checked:
    """What a simulation starts from. Raises the ConfigError that it would raise; cheap unless `need_future`, without
    which, and without `future`, policies that know the future know nothing.
    """
    spec = parse_policies(policy) if isinstance(policy, str) else policy
    memory = ExpertMemory.parse(capacity) if isinstance(capacity, str) else capacity
    if pool not in POOLS:
        raise ConfigError("pool", pool, f"one of {', '.join(POOLS)}")
    if mode not in MODES:
        raise ConfigError("mode", mode, f"one of {', '.join(MODES)}")
    if batch < 1:
        raise ConfigError("batch", batch, "integer >= 1")
    if link is not None and expert_bytes is None:
        raise ConfigError("expert_bytes", None, "the size of one expert, for a link")
    for name, given in (("compute", compute), ("host", host)):
        if given is not None and link is None:
            raise ConfigError(name, str(given), "has no effect without a link")
    if not trace.num_tokens:
        raise ConfigError("trace", "0 tokens", "at least one token")
    num_slots = slots_of(trace, memory, expert_bytes)
    if draft is not None:
        num_slots = _beside(draft, num_slots, trace, mode, batch)
    geometry = Geometry(layers=trace.layers, num_experts=trace.num_experts, top_k=trace.top_k)
    if spec.needs_future and future is None:
        future = passes.future(trace, mode, batch) if need_future else Future.of([])
    policies = spec.build(geometry, seed=seed, future=future)
    _check_needs(trace, spec, policies)
    return Checked(spec, memory, num_slots, policies)


def _beside(draft: SimDraft, num_slots: int, trace: RouteTrace, mode: Mode, batch: int) -> int:
    """Slots that a draft leaves."""
    if batch > 1 or mode == "prefill":
        raise ConfigError("draft", draft.tokens, "one sequence at a time, token by token: batch 1, not mode prefill")
    layers = len(trace.layers)
    taken: int = math.ceil(draft.bytes_share * layers * trace.num_experts)
    if num_slots - taken < layers:
        limit = f"leaves {num_slots - taken} of {num_slots} slots for {layers} layers, at least one each is needed"
        raise ConfigError("draft_bytes_share", draft.bytes_share, limit)
    return num_slots - taken


def slots_of(trace: RouteTrace, memory: ExpertMemory, expert_bytes: int | None) -> int:
    """Raises ConfigError for a capacity below one expert a layer, or in bytes without the size of an expert."""
    if memory.kind == "auto":
        raise ConfigError(
            "expert_memory", "auto", "slots a layer, a fraction or bytes: no memory is asked in a simulation"
        )
    if memory.kind == "bytes" and expert_bytes is None:
        raise ConfigError("expert_bytes", None, "the size of one expert, for a capacity in bytes")
    return memory.slots(
        num_layers=len(trace.layers),
        num_experts=trace.num_experts,
        slot_bytes=expert_bytes or 1,
        free_bytes=0,
    )


def _check_needs(trace: RouteTrace, spec: PolicySpec, policies: PolicySet) -> None:
    """Raises ConfigError for a policy that asks for what was not recorded."""
    if policies.prefetch is not None and policies.prefetch.needs_lookahead and trace.lookahead_logits is None:
        limit = (
            "the trace has no lookahead_logits; prefetch=oracle:accuracy=X stands in for a predictor of that accuracy"
        )
        raise ConfigError("policies.prefetch", spec.prefetch.name, limit)
    if policies.miss.needs_logits and trace.router_logits is None:
        raise ConfigError("policies.miss", spec.miss.name, "the trace has no router_logits")
    if spec.prefetch.name == "token" and (trace.token_ids < 0).any():
        raise ConfigError("policies.prefetch", spec.prefetch.name, "the trace does not tell its token ids")
    if spec.lossy and trace.expert_weights is None:
        raise ConfigError("policies.miss", spec.miss.name, "the trace has no expert_weights")
