"""A step on several devices, by a roofline and the formulas of the exchanges. Nothing here is measured.

Attention and vocabulary are cut by heads and ids, experts lie evenly over the devices, all else is whole on each: as
smoe.models.tensor_parallel and smoe.collectives.schedules have it. Parts of a layer come one after the other: what is
computed while messages are under way is not taken off, so the times err on the slow side, for every schedule alike.

G devices, T rows of the step, L layers, H hidden, k experts a row of E.
"""

from dataclasses import dataclass
from typing import Literal, get_args

from smoe.clustering.traffic import SCHEDULES
from smoe.collectives.wire import exchange_s, wire_bytes
from smoe.core.errors import CapacityError, ConfigError
from smoe.core.topology import Topology
from smoe.sim.serving.exchange import Exchanges
from smoe.sim.serving.load import StepLoad
from smoe.sim.serving.shape import ModelShape

Schedule = Literal["allreduce", "scatter", "speculative"]
assert get_args(Schedule) == SCHEDULES
KV_SHARE = 0.9
"""Of the memory that weights leave, what is for KV rows; the rest is for activations and buffers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attainable:
    """Assumed, not measured: the shares of data-sheet rates that kernels and exchanges reach, what starting an exchange
    takes, and the engine's own time a step."""

    compute_share: float = 0.6
    memory_share: float = 0.8
    link_share: float = 0.8
    call_s: float = 10e-6
    step_s: float = 0.5e-3

    def __post_init__(self) -> None:
        for name in ("compute_share", "memory_share", "link_share"):
            if not 0 < getattr(self, name) <= 1:
                raise ConfigError(name, getattr(self, name), "a share above 0, up to 1")
        for name in ("call_s", "step_s"):
            if getattr(self, name) < 0:
                raise ConfigError(name, getattr(self, name), "seconds, 0 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """`lar`: share of choices whose expert is on its row's device; by chance it is 1 / G. The busiest device has
    `imbalance` times the mean work of experts, and as much to send. With `dedup` a row goes to each other device once.
    """

    schedule: Schedule
    lar: float
    imbalance: float = 1.0
    dedup: bool = True

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise ConfigError("schedule", self.schedule, f"one of {', '.join(SCHEDULES)}")
        if not 0 <= self.lar <= 1:
            raise ConfigError("lar", self.lar, "a share from 0 to 1")
        if self.imbalance < 1:
            raise ConfigError("imbalance", self.imbalance, "1 or more")

    def sent_rows(self, devices: int, top_k: int) -> float:
        """Of one row, to other devices. Without duplicates as if choices fell on them independently, which errs on the
        high side for experts that are grouped by who needs them together."""
        if devices == 1:
            return 0.0
        others, remote = devices - 1, 1 - self.lar
        return others * (1 - (1 - remote / others) ** top_k) if self.dedup else top_k * remote


class DeviceCost:
    """A LoadCost. `dtype_bytes` of weights, hidden states and KV rows."""

    def __init__(
        self,
        topology: Topology,
        shape: ModelShape,
        routing: Routing,
        *,
        attainable: Attainable | None = None,
        dtype_bytes: int = 2,
    ) -> None:
        """Raises ConfigError for a topology without rates, CapacityError for a model that does not fit."""
        if topology.rates is None:
            raise ConfigError("topology", topology.name, "a topology with a `device` section: its rates and memory")
        attainable = Attainable() if attainable is None else attainable
        self.topology, self.shape, self.routing, self.attainable = topology, shape, routing, attainable
        self._devices, self._dtype_bytes = topology.num_devices, dtype_bytes
        self._flops_per_s = topology.rates.flops_per_s * attainable.compute_share
        self._bytes_per_s = topology.rates.memory_bytes_per_s * attainable.memory_share
        self._exchanges = Exchanges(topology, link_share=attainable.link_share, call_s=attainable.call_s)
        self._sent_rows = routing.sent_rows(self._devices, shape.top_k)
        weights = dtype_bytes * shape.params_of_device(self._devices)
        row = dtype_bytes * shape.layers * shape.kv_values_of_device(self._devices)
        self.kv_rows = int(KV_SHARE * (topology.rates.memory_bytes - weights) / row)
        if self.kv_rows < 1:
            have = f"{topology.rates.memory_bytes / 1e9:.1f} GB of memory"
            raise CapacityError(f"{shape.name} on {topology.name}: {weights / 1e9:.1f} GB a device, {have}")

    def of(self, load: StepLoad) -> float:
        return sum(self.parts(load).values())

    def parts(self, load: StepLoad) -> dict[str, float]:
        """Seconds of the step by what they go to, over all layers."""
        shape, devices, size = self.shape, self._devices, self._dtype_bytes
        rows, own = load.rows, load.rows / devices
        attention = self._roofline_s(
            2 * rows * (shape.attention_cut / devices + shape.attention_whole)
            + (load.prefill_pairs + load.decode_pairs) * shape.pair_flops / devices,
            size * (shape.attention_cut / devices + shape.attention_whole)
            + size * load.kv_rows * shape.kv_values_of_device(devices),
        )
        whole = 3 * shape.hidden * shape.shared_ffn + shape.hidden * shape.num_experts
        touched = shape.num_experts * (1 - (1 - shape.top_k / shape.num_experts) ** rows) / devices
        experts = self._roofline_s(
            2 * own * shape.top_k * self.routing.imbalance * shape.expert_params, size * touched * shape.expert_params
        )
        dense = 3 * shape.hidden * shape.dense_ffn
        head = shape.vocab * shape.hidden / devices
        exchanges, vocab_s = self._exchange_s(load)
        return {
            "attention": shape.layers * attention,
            "whole": shape.moe_layers * self._roofline_s(2 * own * whole, size * whole)
            + shape.dense_layers * self._roofline_s(2 * own * dense, size * dense),
            "experts": shape.moe_layers * experts,
            "vocabulary": self._roofline_s(2 * load.sampled * head, size * head if load.sampled else 0.0) + vocab_s,
            **exchanges,
            "engine": self.attainable.step_s,
        }

    def _roofline_s(self, flops: float, nbytes: float) -> float:
        return max(flops / self._flops_per_s, nbytes / self._bytes_per_s)

    def _exchange_s(self, load: StepLoad) -> tuple[dict[str, float], float]:
        """Those of all layers by purpose; and of embedding and logits."""
        shape, devices, size, exchanges = self.shape, self._devices, self._dtype_bytes, self._exchanges
        if devices == 1:
            return {}, 0.0
        schedule = self.routing.schedule
        wire = wire_bytes(
            schedule,
            ranks=devices,
            rows=load.rows,
            hidden=shape.hidden,
            dtype_bytes=size,
            choices=shape.top_k,
            sent_rows=self._sent_rows * load.rows,
            messages=devices,
        )
        layer = exchange_s(
            schedule,
            wire,
            devices,
            exchanges.spread_s,
            exchanges.shared_s,
            reduce=exchanges.shared_s,
            busiest=self.routing.imbalance,
        )
        # Layers without experts exchange nothing between the two.
        every = {purpose: shape.layers * layer[purpose] for purpose in ("reduce", "gather")}
        moe = {purpose: shape.moe_layers * layer[purpose] for purpose in ("dispatch", "combine")}
        embedding_s = exchanges.shared_s(load.rows * shape.hidden * size * (devices - 1) / devices)
        logits_s = exchanges.spread_s(load.sampled * shape.vocab * 4 / devices) if load.sampled else 0.0
        return every | moe, embedding_s + logits_s
