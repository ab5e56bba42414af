"""A link from host memory that keeps a part of the experts: what it lacks comes from the disk first."""

from collections.abc import Sequence
from dataclasses import dataclass

from smoe.core.link_model import LinkModel
from smoe.offload.cache import Residency
from smoe.offload.policies.catalog import Geometry
from smoe.offload.policies.spec import parse_policies
from smoe.offload.slots import View
from smoe.sim.link import Link

HOST_EVICTION = "evict=lru"
"""That of smoe.offload.host, which is not torch-free."""


@dataclass(frozen=True, slots=True)
class HostPart:
    """Host memory for a `fraction` of all experts; `miss` is the whole way of an expert that is not there: read from
    the disk, then copied on."""

    fraction: float
    miss: LinkModel


class StackedLink(Link):
    """One transfer after the other, each from the disk on where host memory lacks it: no read goes on beside a copy,
    so that this errs on the slow side. Also what a miss policy asks: `hold` of what can be computed in place, and the
    mean `fetch_s` so far."""

    def __init__(self, geometry: Geometry, fraction: float, *, hit_s: float, miss_s: float) -> None:
        super().__init__(hit_s)
        layers, all_experts = geometry.layers, len(geometry.layers) * geometry.num_experts
        num_slots = max(len(layers), int(fraction * all_experts))
        self.from_disk = self._carried = 0
        self._miss_s = miss_s
        self._eviction = parse_policies(HOST_EVICTION).build(geometry).eviction
        self._residency = Residency(num_slots, layers, self._eviction, floor=num_slots // len(layers))

    @property
    def fetch_s(self) -> float:
        """0 before anything was fetched, as for the costs that an engine measures."""
        return self.busy_s / max(1, self._carried)

    def hold(self, layer: int, experts: Sequence[int]) -> frozenset[int]:
        """Those of `experts` that host memory has, which counts as a use."""
        held = self._residency.resident(layer).keys() & set(experts)
        self._eviction.touch(layer, sorted(held))
        return frozenset(held)

    def _carry_s(self, view: View) -> float:
        self._carried += 1
        layer, expert = view[:2]
        if self.hold(layer, [expert]):
            return self.transfer_s
        self.from_disk += 1
        slot = self._residency.try_reserve(layer, expert)
        assert slot is not None
        self._residency.commit(slot)
        self._residency.unpin(slot)
        return self._miss_s


@dataclass(frozen=True, slots=True)
class StackedCosts:
    """What miss=auto compares over a StackedLink."""

    link: StackedLink
    row_s: float
    slot_row_s: float = 0.0

    @property
    def fetch_s(self) -> float:
        return self.link.fetch_s

    def compute_s(self, rows: int) -> float:
        return rows * self.row_s

    def slot_s(self, rows: int) -> float:
        return rows * self.slot_row_s
