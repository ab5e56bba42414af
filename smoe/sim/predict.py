"""Tokens/s of a model that does not fit, from a trace and a few bandwidths, before anything loads."""

from dataclasses import dataclass, replace

from smoe.core.link_model import LinkModel
from smoe.core.packaged_traces import open_trace, packaged_names
from smoe.core.route_edit import select_sequences
from smoe.core.route_trace import RouteTrace
from smoe.offload.ahead import PAUSE_SHARE
from smoe.offload.policies.catalog import Geometry
from smoe.offload.policies.spec import PolicySpec, parse_policies
from smoe.sim.compute import ComputeModel
from smoe.sim.simulate import simulate
from smoe.sim.stacked import HostPart

STAND_IN = "gpt-oss-20b"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Warm decoding, one token a step. Rates are per token; `compute_s` is a token's with every expert resident.

    Of `moved_bytes`, which come over the last link, `disk_bytes` were read from the disk before, at
    `disk_bytes_per_s` from there into a slot; None where all come from one place. `in_place` experts a token are
    computed where they are.
    """

    trace: str
    same_geometry: bool
    policy: str
    tokens_per_s: float
    hit_rate: float
    moved_bytes: float
    compute_s: float
    link_bytes_per_s: float
    in_place: float = 0.0
    disk_bytes: float | None = None
    disk_bytes_per_s: float | None = None

    @property
    def bound_s(self) -> float:
        if self.disk_bytes is None or self.disk_bytes_per_s is None:
            return max(self.compute_s, self.moved_bytes / self.link_bytes_per_s)
        copied_s = (self.moved_bytes - self.disk_bytes) / self.link_bytes_per_s
        return max(self.compute_s, copied_s + self.disk_bytes / self.disk_bytes_per_s)


def choose_trace(num_layers: int, num_experts: int, top_k: int) -> tuple[str, bool]:
    """A packaged trace of this geometry, or STAND_IN; and whether it is of this geometry."""
    for name in packaged_names():
        trace = open_trace(name)
        if (len(trace.layers), trace.num_experts, trace.top_k) == (num_layers, num_experts, top_k):
            return name, True
    return STAND_IN, False


def predict(
    trace: RouteTrace,
    policy: str | PolicySpec,
    fraction: float,
    *,
    accesses: int,
    expert_bytes: int,
    link: LinkModel,
    dense_s: float,
    row_s: float,
    in_place_row_s: float | None = None,
    host: HostPart | None = None,
    name: str = "",
    same_geometry: bool = True,
) -> Prediction:
    """`fraction` of the experts is resident; the first half of the trace's sequences only warms the cache.

    Of the model: `accesses` experts a token over all layers, of `expert_bytes`, each `row_s` to compute from a slot and
    `in_place_row_s` (by default as long) where it is, and `dense_s` a token for all else. With a `host` part `link` is
    from there. A trace of fewer or more accesses is stretched to them. Raises ConfigError.
    """
    layers = len(trace.layers)
    spec, scale = usable(policy, trace), accesses / (layers * trace.top_k)
    compute = ComputeModel(dense_s / scale / layers, row_s, in_place_row_s)
    warm_up = select_sequences(trace, range(max(1, trace.num_sequences // 2)))
    whole, warmed = (
        simulate(
            part,
            spec,
            f"{100 * fraction:g}%",
            link=link,
            compute=compute,
            expert_bytes=expert_bytes,
            mode="decode",
            pause_share=PAUSE_SHARE,
            host=host,
        )
        for part in (trace, warm_up)
    )
    assert whole.seconds is not None
    assert warmed.seconds is not None
    tokens, counts = whole.tokens - warmed.tokens, whole.experts.since(warmed.experts)
    return Prediction(
        trace=name,
        same_geometry=same_geometry,
        policy=str(spec),
        tokens_per_s=tokens / (whole.seconds - warmed.seconds) / scale,
        hit_rate=counts.hits / max(1, counts.hits + counts.late + counts.misses),
        moved_bytes=scale * counts.bytes_moved / tokens,
        compute_s=dense_s + accesses * row_s,
        link_bytes_per_s=expert_bytes / link.transfer_s(expert_bytes),
        in_place=scale * counts.computed_in_place / tokens,
        disk_bytes=None if host is None else scale * counts.disk_bytes / tokens,
        disk_bytes_per_s=None if host is None else expert_bytes / host.miss.transfer_s(expert_bytes),
    )


def usable(policy: str | PolicySpec, trace: RouteTrace) -> PolicySpec:
    """Without prefetch where the trace lacks what it looks at."""
    spec = parse_policies(policy) if isinstance(policy, str) else policy
    spec.check_live()
    geometry = Geometry(layers=trace.layers, num_experts=trace.num_experts, top_k=trace.top_k)
    prefetch = spec.build(geometry).prefetch
    if prefetch is not None and prefetch.needs_lookahead and trace.lookahead_logits is None:
        return replace(spec, prefetch=parse_policies("").prefetch)
    return spec


def head(trace: RouteTrace, tokens: int) -> RouteTrace:
    """The first whole sequences of the trace of at most `tokens` in all, at least one; each is cut to `tokens`."""
    count = 1
    while count < trace.num_sequences and trace.sequence_start[count + 1] <= tokens:
        count += 1
    return select_sequences(trace, range(count), longest=tokens)
