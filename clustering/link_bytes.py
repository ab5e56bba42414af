"""Bytes between devices, told apart by the links they take.

Axes: G devices.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from smoe.core.errors import ConfigError
from smoe.core.topology import LINK_CLASSES, Topology

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkBytes:
    """`by_class`: bytes by where they go, each counted once (same_device moves nothing). `by_kind`: bytes that links
    of a kind carry, each byte counted on every link that it passes. `busiest`: the link and direction, `a -> b`, that
    needs longest, and `busiest_s` for how long: no schedule is faster. `link_s`: time of all links together."""

    by_class: dict[str, float]
    by_kind: dict[str, float]
    busiest: str
    busiest_s: float
    link_s: float


def link_bytes(topology: Topology, traffic: Array) -> LinkBytes:
    """`traffic` [G, G] bytes from device to device. Raises ConfigError where the devices are not as many."""
    devices = topology.num_devices
    if traffic.shape != (devices, devices):
        raise ConfigError("topology", f"{topology.name} of {devices} devices", f"{len(traffic)} devices")
    classes = topology.classes()
    by_class: dict[str, float] = {
        name: float(traffic[classes == index].sum()) for index, name in enumerate(LINK_CLASSES)
    }
    by_kind: dict[str, float] = {}
    seconds: dict[tuple[str, str], float] = {}
    for pair, links in topology.paths().items():
        nbytes = float(traffic[pair])
        for link in links:
            by_kind[link.kind] = by_kind.get(link.kind, 0.0) + nbytes
            ends = (link.a, link.b)
            seconds[ends] = seconds.get(ends, 0.0) + nbytes / link.bytes_per_s
    busiest = max(sorted(seconds), key=lambda ends: seconds[ends], default=None)
    return LinkBytes(
        by_class=by_class,
        by_kind=dict(sorted(by_kind.items())),
        busiest="none" if busiest is None else " -> ".join(busiest),
        busiest_s=0.0 if busiest is None else seconds[busiest],
        link_s=float(np.sum(list(seconds.values()))),
    )
