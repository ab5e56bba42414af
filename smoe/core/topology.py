"""How devices are connected: a graph of devices, switches and links, and what it costs to get from one to another.

Axes: G devices.
"""

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from smoe.core.errors import ConfigError

if TYPE_CHECKING:
    import networkx as nx

Array = npt.NDArray[Any]

LinkKind = Literal["nvlink", "pcie", "upi", "ib", "eth"]
LINK_KINDS: tuple[LinkKind, ...] = ("nvlink", "pcie", "upi", "ib", "eth")
LinkClass = Literal["same_device", "same_host", "other_host"]
LINK_CLASSES: tuple[LinkClass, ...] = ("same_device", "same_host", "other_host")

_ROUTED_BYTES = 1 << 20
"""A path is the fastest one for this much: neither latency nor bandwidth alone decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Between the nodes `a` and `b`, in both directions at once: `bytes_per_s` each way, `latency_s` one way."""

    a: str
    b: str
    kind: LinkKind
    bytes_per_s: float
    latency_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRates:
    """What every device can do at most, by its data sheet: `flops_per_s` of dense matrix products in bf16."""

    flops_per_s: float
    memory_bytes_per_s: float
    memory_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """`devices` by device id and the host of each; `switches` are all other ends of links. `rates` are those of each
    device, if they are told.

    Made by `smoe.core.topology_file`, or checked by `validate`: every two devices are connected.
    """

    name: str
    devices: tuple[str, ...]
    hosts: tuple[str, ...]
    switches: tuple[str, ...]
    links: tuple[Link, ...]
    rates: DeviceRates | None = None

    @property
    def num_devices(self) -> int:
        return len(self.devices)

    def graph(self) -> "nx.Graph[str]":
        """Nodes have `device` (the id, or None for a switch) and `host`; edges what a Link has."""
        import networkx as nx

        graph: nx.Graph[str] = nx.Graph(name=self.name)
        for device, (name, host) in enumerate(zip(self.devices, self.hosts, strict=True)):
            graph.add_node(name, device=device, host=host)
        graph.add_nodes_from(self.switches, device=None, host=None)
        for link in self.links:
            figures = {"kind": link.kind, "bytes_per_s": link.bytes_per_s, "latency_s": link.latency_s}
            graph.add_edge(link.a, link.b, **figures)
        return graph

    def paths(self) -> dict[tuple[int, int], list[Link]]:
        """By (from, to), the links passed one after the other: the fastest way for a megabyte, ties by name of node.

        The way back is the same; each link is turned so that `a` comes first. Raises ConfigError naming two devices
        without a path.
        """
        import networkx as nx

        graph = self.graph()
        for _, _, edge in graph.edges(data=True):
            edge["seconds"] = edge["latency_s"] + _ROUTED_BYTES / edge["bytes_per_s"]
        graph = _in_order(graph)
        paths: dict[tuple[int, int], list[Link]] = {}
        for a, start in enumerate(self.devices):
            found = nx.single_source_dijkstra_path(graph, start, weight="seconds")
            for b, end in enumerate(self.devices[: a + 1]):
                if end not in found:
                    raise ConfigError("links", f"{end} and {start}", "connected devices")
                for pair, nodes in (((a, b), found[end]), ((b, a), found[end][::-1])):
                    paths[pair] = [_link(*ends, graph.edges[ends]) for ends in itertools.pairwise(nodes)]
        return paths

    def link_class(self, a: int, b: int) -> LinkClass:
        if a == b:
            return "same_device"
        return "same_host" if self.hosts[a] == self.hosts[b] else "other_host"

    def classes(self) -> Array:
        """[G, G] int: index into LINK_CLASSES."""
        hosts = np.unique(self.hosts, return_inverse=True)[1]
        other = hosts[:, None] != hosts[None, :]
        return np.where(np.eye(self.num_devices, dtype=bool), 0, 1 + other)

    def cost(self) -> Array:
        """[G, G] f64 seconds of link time a byte takes, summed over the links of its path: symmetric, diagonal 0.

        What one link carries another byte has to wait for, so this is the cost to everybody, not to the byte.
        """
        cost = np.zeros((self.num_devices, self.num_devices))
        for (a, b), links in self.paths().items():
            if a < b:
                cost[a, b] = cost[b, a] = sum(1.0 / link.bytes_per_s for link in links)
        return cost

    def validate(self) -> None:
        """Raises ConfigError naming the offending field."""
        if not self.devices or len(self.hosts) != len(self.devices):
            raise ConfigError("devices", list(self.devices), f"one or more, each with a host ({len(self.hosts)} hosts)")
        names = [*self.devices, *self.switches]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError("devices and switches", name, "a name that is used once")
        seen: set[frozenset[str]] = set()
        for index, link in enumerate(self.links):
            field = f"links[{index}]"
            for end in (link.a, link.b):
                if end not in names:
                    raise ConfigError(f"{field}.between", end, "a device or a switch by its name")
            if link.a == link.b:
                raise ConfigError(f"{field}.between", link.a, "two ends")
            if link.kind not in LINK_KINDS:
                raise ConfigError(f"{field}.kind", link.kind, f"one of {', '.join(LINK_KINDS)}")
            if not 0 < link.bytes_per_s < float("inf"):
                raise ConfigError(f"{field}.bytes_per_s", link.bytes_per_s, "above 0, in bytes a second each way")
            if not 0 <= link.latency_s < float("inf"):
                raise ConfigError(f"{field}.latency_s", link.latency_s, "0 or above, in seconds")
            ends = frozenset((link.a, link.b))
            if ends in seen:
                raise ConfigError(f"{field}.between", [link.a, link.b], "ends that no link connects yet")
            seen.add(ends)
        self.paths()


def _in_order(graph: "nx.Graph[str]") -> "nx.Graph[str]":
    """The graph with its nodes and edges sorted, so that equal paths are decided by name and not by the file."""
    import networkx as nx

    ordered: nx.Graph[str] = nx.Graph()
    ordered.add_nodes_from(sorted(graph))
    ordered.add_edges_from(sorted((min(a, b), max(a, b)) for a, b in graph.edges))
    nx.set_edge_attributes(ordered, {tuple(edge): graph.edges[edge] for edge in ordered.edges})
    return ordered


def _link(a: str, b: str, edge: dict[str, Any]) -> Link:
    return Link(a=a, b=b, kind=edge["kind"], bytes_per_s=edge["bytes_per_s"], latency_s=edge["latency_s"])
