"""The decode speed that `smoe plan` predicts: the simulator, over bandwidths measured here and now."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from smoe.core.errors import ConfigError
from smoe.core.link_model import LinkModel
from smoe.engine.plan import MemoryPlan
from smoe.models.loading import Checkpoint
from smoe.sim.predict import Prediction
from smoe.sim.stacked import HostPart

_MEMORY_BYTES, _TRACE_TOKENS = 256 << 20, 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """One sequence, warm. `measured_link` is False for a declared link; `simulated` is None when every expert is
    resident, and then only reading the weights from memory takes time. The engine's own overhead is not in it."""

    tokens_per_s: float
    memory_bytes_per_s: float
    measured_link: bool
    simulated: Prediction | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self) -> str:
        from smoe.cli.answers import size

        found = self.simulated
        memory = f"weights at {size(self.memory_bytes_per_s)}/s"
        if found is None:
            return f"bound by memory: {memory}"
        how = "measured" if self.measured_link else "declared"
        parts = [f"{size(found.moved_bytes)} a token at {size(found.link_bytes_per_s)}/s ({how})"]
        if found.disk_bytes is not None and found.disk_bytes_per_s is not None:
            parts.append(
                f"{size(found.disk_bytes)} of it from the disk, read and copied at {size(found.disk_bytes_per_s)}/s as "
                "if nothing overlapped"
            )
        if found.in_place:
            parts.append(f"{found.in_place:.3g} experts a token computed where they are")
        routes = f"routes of {found.trace}" + ("" if found.same_geometry else ", which has another geometry")
        return "; ".join([f"{100 * found.hit_rate:.0f} % hits ({routes})", *parts, memory])


def forecast(checkpoint: Checkpoint, plan: MemoryPlan) -> Forecast | None:
    """Measures memory and, of the tiers that experts come from, copies from host memory, and a second of plain direct
    reads of the model's own files. None where the files cannot be read so, or where the policies need what no packaged
    trace has."""
    from smoe.bench.bandwidth import read_bandwidth, typical
    from smoe.core.packaged_traces import open_trace
    from smoe.sim.predict import choose_trace, head, predict

    spec = checkpoint.spec
    router = spec.moe(spec.moe_layers[0]).router
    accesses = len(spec.moe_layers) * router.top_k
    memory = typical(read_bandwidth(_MEMORY_BYTES, 3))
    itemsize = 2 if plan.dtype == "bfloat16" else 4
    embedding = 0 if spec.tied_head else spec.vocab * spec.hidden * itemsize
    dense_s, row_s = (plan.dense_bytes - embedding) / memory, plan.expert_bytes / memory
    if plan.all_resident:
        rate = 1 / (dense_s + accesses * row_s)
        return Forecast(tokens_per_s=rate, memory_bytes_per_s=memory, measured_link=False, simulated=None)
    read_bytes = _read_bytes(checkpoint, plan)
    links = _links(checkpoint, plan, read_bytes)
    if links is None:
        return None
    all_experts = plan.num_moe_layers * plan.num_experts
    name, same = choose_trace(len(spec.moe_layers), router.num_experts, router.top_k)
    try:
        found = predict(
            head(open_trace(name), _TRACE_TOKENS),
            plan.expert_policy,
            plan.expert_slots / all_experts,
            accesses=accesses,
            expert_bytes=read_bytes,
            link=links.last,
            dense_s=dense_s,
            row_s=row_s,
            # In place or in a slot, it is in this host's memory and read from there.
            in_place_row_s=row_s,
            host=None if links.whole is None else HostPart(plan.host_expert_slots / all_experts, links.whole),
            name=name,
            same_geometry=same,
        )
    except ConfigError:
        return None
    return Forecast(
        tokens_per_s=found.tokens_per_s,
        memory_bytes_per_s=memory,
        measured_link=plan.emulated_link is None,
        simulated=found,
    )


class _Links(NamedTuple):
    """`last` is the link into the slots; `whole` the way of what host memory lacks, where it keeps a part."""

    last: LinkModel
    whole: LinkModel | None


def _read_bytes(checkpoint: Checkpoint, plan: MemoryPlan) -> int:
    """Of one expert; of residuals, as the first expert has it."""
    if plan.residual_group_size is None:
        return plan.expert_bytes
    import torch

    from smoe.kernels.int4 import quantise_expert
    from smoe.models.residual import pack_expert

    layer, group_size = checkpoint.spec.moe_layers[0], plan.residual_group_size
    expert = checkpoint.read_expert(layer, 0, dtype=torch.bfloat16)
    shapes = checkpoint.expert_source(layer, 0).shapes()
    return pack_expert(expert, quantise_expert(expert, group_size), shapes, group_size).content.numel()


def _links(checkpoint: Checkpoint, plan: MemoryPlan, nbytes: int) -> _Links | None:
    """`nbytes` of one expert. None where files cannot be read past the page cache."""
    disk_s = 0.0
    declared = None if plan.emulated_link is None else LinkModel.parse(plan.emulated_link, "expert_link")
    if declared is not None and len(plan.expert_tiers) == 1:
        return _Links(declared, None)
    if "disk" in plan.expert_tiers:
        rate = _disk_rate(checkpoint, plan)
        if rate is None:
            return None
        disk_s = nbytes / rate
    if "host" not in plan.expert_tiers:
        return _Links(LinkModel(nbytes / disk_s), None)
    copy_s = nbytes / _copy_rate(plan)
    if "disk" not in plan.expert_tiers:
        return _Links(LinkModel(nbytes / copy_s), None)
    # An emulated link takes its time or that of what it stands for, whichever is longer.
    declared_s = 0.0 if declared is None else declared.transfer_s(nbytes)
    return _Links(LinkModel(nbytes / max(declared_s, copy_s)), LinkModel(nbytes / max(declared_s, disk_s + copy_s)))


def _copy_rate(plan: MemoryPlan) -> float:
    from smoe.bench.bandwidth import copy_bandwidth, typical

    return typical(copy_bandwidth(plan.expert_bytes, _MEMORY_BYTES))


def _disk_rate(checkpoint: Checkpoint, plan: MemoryPlan) -> float | None:
    from smoe.bench.offload.link import Link

    layers = checkpoint.spec.moe_layers
    parts = checkpoint.expert_source(layers[0], 0).parts
    files = sorted({Path(part.path) for part in parts.values()})
    try:
        return Link(files, plan.expert_bytes, repeats=1, pieces=16).typical
    except OSError:
        return None
