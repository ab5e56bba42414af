"""Ledger: the bytes that collectives send, by purpose and by what they cross."""

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from smoe.core.stats import TrafficStats

LinkClass = Literal["device", "host", "network"]
LINK_CLASSES: tuple[LinkClass, ...] = ("device", "host", "network")
PURPOSES = ("reduce", "gather", "dispatch", "combine", "sizes", "vocab")
"""What collectives are for."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """`device` are bytes that a rank handed to itself, `host` to ranks on its host, `network` to other hosts."""

    calls: int = 0
    device: int = 0
    host: int = 0
    network: int = 0

    @property
    def wire(self) -> int:
        """Bytes that left the device."""
        return self.host + self.network

    def plus(self, other: "Traffic") -> "Traffic":
        return Traffic(
            self.calls + other.calls,
            self.device + other.device,
            self.host + other.host,
            self.network + other.network,
        )


class Ledger:
    """Of one rank. `purpose` is what a collective was for: one of PURPOSES, or of one's own."""

    def __init__(self, rank: int, hosts: Sequence[str]) -> None:
        """`hosts[r]` names the host of rank r; equal names are one host."""
        here = hosts[rank]
        self._class_of: list[LinkClass] = ["host" if host == here else "network" for host in hosts]
        self._class_of[rank] = "device"
        self._traffic: dict[str, Traffic] = {}
        self.busy_s = 0.0
        """Time spent in exchanges, the wait for other ranks included."""

    def count(self, purpose: str, sent_bytes: Mapping[int, int]) -> None:
        """One collective that sent these bytes to these ranks (of all ranks, not of a group)."""
        by_class = dict.fromkeys(LINK_CLASSES, 0)
        for rank, nbytes in sent_bytes.items():
            by_class[self._class_of[rank]] += nbytes
        self._traffic[purpose] = self.traffic(purpose).plus(Traffic(1, **by_class))

    def traffic(self, purpose: str) -> Traffic:
        return self._traffic.get(purpose, Traffic())

    def all_traffic(self) -> dict[str, Traffic]:
        return dict(self._traffic)

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.busy_s += time.perf_counter() - started

    def stats(self) -> TrafficStats:
        """Over all purposes. From any thread."""
        traffic = list(self._traffic.values())
        return TrafficStats(
            calls=sum(each.calls for each in traffic),
            host_bytes=sum(each.host for each in traffic),
            network_bytes=sum(each.network for each in traffic),
            busy_s=self.busy_s,
        )

    def reset(self) -> None:
        self._traffic.clear()
        self.busy_s = 0.0
