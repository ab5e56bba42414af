"""The regroup job around its layers: what goes in is checked, and what comes out of the layers is made a placement."""

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from smoe.clustering.evaluate import Evaluation, destinations, evaluate
from smoe.clustering.journey import follow
from smoe.clustering.layer_job import LayerResult, LayerRules
from smoe.clustering.link_bytes import link_bytes
from smoe.clustering.mapping import map_clusters
from smoe.clustering.problem import Balance, Solver
from smoe.clustering.replicas import choose_replicas
from smoe.clustering.tables import build_tables
from smoe.clustering.traffic import count_pass
from smoe.core.errors import ConfigError, TraceError
from smoe.core.load_table import LoadTable
from smoe.core.placement import Placement
from smoe.core.placement_build import from_expert_device, relabel_devices, with_replicas
from smoe.core.regroup_config import RegroupConfig
from smoe.core.route_edit import split
from smoe.core.route_trace import RouteTrace
from smoe.core.topology import Topology

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModelFacts:
    """What a checkpoint tells of a trace of it. `row_bytes`: one token's hidden state. `embedding` [V, D] f32."""

    fingerprint: str
    num_experts: int
    top_k: int
    layers: tuple[int, ...]
    vocab_size: int
    row_bytes: int
    router_groups: int
    embedding: Array

    def check(self, name: str, trace: RouteTrace) -> None:
        """That the trace is of this model. Raises TraceError."""
        for field in ("fingerprint", "num_experts", "top_k", "layers"):
            ours, theirs = getattr(trace, field), getattr(self, field)
            if ours != theirs:
                raise TraceError(f"{name}: {field}: {ours!r} (the model's is {theirs!r})")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RegroupJob:
    """Checked input: `fit` and `heldout`, or `table`. `rules` hold for every layer."""

    config: RegroupConfig
    rules: LayerRules
    layers: tuple[int, ...]
    num_experts: int
    fingerprint: str
    fit: RouteTrace | None = None
    heldout: RouteTrace | None = None
    table: LoadTable | None = None
    model: ModelFacts | None = None
    topology: Topology | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Regrouped:
    """`evaluation` is None, and the placement without tables, where only loads were known."""

    placement: Placement
    evaluation: Evaluation | None
    report: dict[str, Any]


def job_of_trace(
    config: RegroupConfig,
    solver: Solver,
    trace: RouteTrace,
    *,
    model: ModelFacts | None = None,
    topology: Topology | None = None,
) -> RegroupJob:
    """Raises ConfigError or TraceError for what does not fit together."""
    name = str(config.trace)
    if trace.num_tokens == 0:
        raise TraceError(f"{name}: empty: no token to learn from")
    if model is not None:
        model.check(name, trace)
    vocab, highest = _vocab(config, model), int(trace.token_ids.max())
    if vocab is not None and highest >= vocab:
        raise TraceError(f"{name}: token_ids: {highest} (the vocabulary has {vocab})")
    slots = config.slots(trace.num_experts)
    if topology is not None and topology.num_devices != len(slots):
        raise ConfigError("topology", f"{topology.name} of {topology.num_devices} devices", f"{len(slots)} devices")
    if trace.num_sequences < 2:
        raise TraceError(f"{name}: {trace.num_sequences} sequence (at least 2: some to learn from, others to judge by)")
    heldout, fit = split(trace, config.heldout, seed=config.seed)
    groups = config.router_groups if model is None else model.router_groups
    return RegroupJob(
        config=config,
        rules=_rules(config, solver, slots, trace.num_experts, groups),
        layers=trace.layers,
        num_experts=trace.num_experts,
        fingerprint=trace.fingerprint,
        fit=fit,
        heldout=heldout,
        model=model,
        topology=topology,
    )


def job_of_loads(config: RegroupConfig, solver: Solver, table: LoadTable) -> RegroupJob:
    """Raises ConfigError for what does not fit together."""
    slots = config.slots(table.num_experts)
    return RegroupJob(
        config=config,
        rules=_rules(config, solver, slots, table.num_experts, config.router_groups),
        layers=table.layers,
        num_experts=table.num_experts,
        fingerprint=f"loads:{config.load_name or config.load}",
        table=table,
    )


def finish(job: RegroupJob, results: list[LayerResult]) -> Regrouped:
    """`results` in the order of the layers. Equal arguments give equal answers."""
    placement = from_expert_device(
        np.stack([result.expert_device for result in results]),
        job.rules.slots_of_device,
        fingerprint=job.fingerprint,
        layers=job.layers,
    )
    report: dict[str, Any] = {"config": job.config.as_json(), "solved": _solved(job, results)}
    if job.fit is None or job.heldout is None:
        if job.config.replicas and job.table is not None:
            # Who asks is not known: every device as often as any other.
            devices = len(job.rules.slots_of_device)
            evenly = np.repeat(job.table.load[:, :, None] / devices, devices, axis=2)
            placement, report["replicas"] = _copy(job, placement, evenly)
        return Regrouped(placement=placement, evaluation=None, report=report)
    embedding = None if job.model is None else job.model.embedding
    tables = build_tables(job.fit, placement.on_device, vocab_size=_vocab(job.config, job.model), embedding=embedding)
    placement = replace(placement, tables=tables)
    if job.topology is not None:
        placement, report["topology"] = _map_to_links(job, job.topology, placement)
    if job.config.replicas:
        placement, report["replicas"] = _copy(job, placement, _activations(job.fit, placement))
        tables = build_tables(
            job.fit, placement.on_device, vocab_size=_vocab(job.config, job.model), embedding=embedding
        )
        placement = replace(placement, tables=tables)
    evaluation = evaluate(
        job.fit,
        job.heldout,
        placement.on_device,
        job.rules.slots_of_device,
        tables=placement.tables,
        embedding=embedding,
        seed=job.config.seed,
    )
    report["heldout"] = evaluation.as_json()
    if not (job.fit.token_ids >= 0).any():
        # Without token ids there is nothing that table T could be looked up by.
        placement = replace(placement, tables=None)
    return Regrouped(placement=placement, evaluation=evaluation, report=report)


def _rules(
    config: RegroupConfig, solver: Solver, slots: tuple[int, ...], num_experts: int, groups: int | None
) -> LayerRules:
    expert_group = None
    if groups is not None and groups > 1:
        if num_experts % groups:
            raise ConfigError("router_groups", groups, f"a divisor of the {num_experts} experts")
        expert_group = np.arange(num_experts) // (num_experts // groups)
    lacking = num_experts - max(slots)
    if config.replicas > lacking:
        raise ConfigError("replicas", config.replicas, f"0 to the {lacking} experts that a device lacks")
    return LayerRules(solver, Balance(theta=config.theta, max_load=config.max_load), slots, config.seed, expert_group)


def _vocab(config: RegroupConfig, model: ModelFacts | None) -> int | None:
    return config.vocab_size if model is None else model.vocab_size


def _solved(job: RegroupJob, results: list[LayerResult]) -> list[dict[str, Any]]:
    return [
        {
            "layer": layer,
            "local_share": round(result.local_share, 6),
            "load_imbalance": round(result.load_imbalance, 6),
            "history": [[round(value, 6) for value in row] for row in result.history],
        }
        for layer, result in zip(job.layers, results, strict=True)
    ]


def _map_to_links(job: RegroupJob, topology: Topology, placement: Placement) -> tuple[Placement, dict[str, Any]]:
    """Clusters to devices by the traffic of the sequences fitted; what it is worth, on the others."""
    assert job.fit is not None
    assert job.heldout is not None
    row_bytes = 1 if job.model is None else job.model.row_bytes
    fitted = rows_between(job.fit, placement)
    mapping = map_clusters(
        fitted * float(row_bytes),
        topology.cost(),
        slots_of_device=job.rules.slots_of_device,
        seed=job.config.seed,
    )
    moved = relabel_devices(placement, mapping.device_of_cluster)
    report: dict[str, Any] = {
        "name": topology.name,
        "unit": "rows" if job.model is None else "bytes",
        "exact": mapping.exact,
        "heldout_tokens": job.heldout.num_tokens,
    }
    for when, placed in (("before", placement), ("after", moved)):
        report[when] = asdict(link_bytes(topology, rows_between(job.heldout, placed).sum(axis=0) * float(row_bytes)))
    return moved, report


def _activations(trace: RouteTrace, placement: Placement) -> Array:
    """[L, E, G]: of an expert, by the device to which the tables send the token."""
    assert placement.tables is not None
    wishes = destinations(placement.tables, trace, follow(trace, placement.on_device))
    experts, devices = placement.num_experts, placement.num_devices
    counted = [
        np.bincount((ids.astype(np.int64) * devices + wish.device[:, None]).ravel(), minlength=experts * devices)
        for ids, wish in zip(trace.expert_ids, wishes, strict=True)
    ]
    return np.stack(counted).reshape(-1, experts, devices)


def _copy(job: RegroupJob, placement: Placement, activations: Array) -> tuple[Placement, list[dict[str, Any]]]:
    """Copies of hot experts in the spare slots; what they do on the sequences fitted, by layer."""
    extra = (job.config.replicas,) * placement.num_devices
    chosen = [
        choose_replicas(held, counts, extra) for held, counts in zip(placement.on_device, activations, strict=True)
    ]
    names = ("load_before", "load_after", "local_before", "local_after")
    report = [{name: round(getattr(each, name), 6) for name in names} for each in chosen]
    return with_replicas(placement, [each.copies for each in chosen]), report


def rows_between(trace: RouteTrace, placement: Placement) -> Array:
    """[L, G, G] rows from device to device, there and back, without duplicates, with tokens where the tables say."""
    assert placement.tables is not None
    on_device = placement.on_device
    wishes = destinations(placement.tables, trace, follow(trace, on_device))
    rows = [
        count_pass(ids, held, wish.device).rows
        for ids, held, wish in zip(trace.expert_ids, on_device, wishes, strict=True)
    ]
    return np.stack([each + each.T for each in rows])
