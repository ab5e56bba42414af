"""The decode speed that `smoe plan` predicts: the simulator, over bandwidths measured here and now."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from smoe.core.errors import ConfigError
from smoe.core.link_model import LinkModel
from smoe.engine.plan import MemoryPlan
from smoe.models.loading import Checkpoint
from smoe.sim.predict import Prediction

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
        link = f"{size(found.moved_bytes)} a token at {size(found.link_bytes_per_s)}/s"
        how = "measured" if self.measured_link else "declared"
        routes = f"routes of {found.trace}" + ("" if found.same_geometry else ", which has another geometry")
        return f"{100 * found.hit_rate:.0f} % hits ({routes}); {link} ({how}); {memory}"


def forecast(checkpoint: Checkpoint, plan: MemoryPlan) -> Forecast | None:
    """Measures memory and, for experts on disk, a second of plain direct reads of the model's own files. None where the
    files cannot be read so, or where the policies need what no packaged trace has."""
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
    link = _link(checkpoint, plan)
    if link is None:
        return None
    name, same = choose_trace(len(spec.moe_layers), router.num_experts, router.top_k)
    try:
        found = predict(
            head(open_trace(name), _TRACE_TOKENS),
            plan.expert_policy,
            plan.expert_slots / (plan.num_moe_layers * plan.num_experts),
            accesses=accesses,
            expert_bytes=plan.expert_bytes,
            link=link,
            dense_s=dense_s,
            row_s=row_s,
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


def _link(checkpoint: Checkpoint, plan: MemoryPlan) -> LinkModel | None:
    if plan.emulated_link is not None:
        return LinkModel.parse(plan.emulated_link, "expert_link")
    from smoe.bench.offload.link import Link

    layers = checkpoint.spec.moe_layers
    parts = checkpoint.expert_source(layers[0], 0).parts
    files = sorted({Path(part.path) for part in parts.values()})
    try:
        return LinkModel(Link(files, plan.expert_bytes, repeats=1, pieces=16).typical)
    except OSError:
        return None
