"""Seconds of exchanges between all devices of a topology: what the busiest link carries, and a latency."""

from collections import Counter
from collections.abc import Iterable, Sequence

from smoe.core.topology import Link, Topology


class Exchanges:
    """Links carry `link_share` of their bytes a second, both ways at once; each exchange takes `call_s` more, for
    whatever starts it. Bytes are those that each device sends."""

    def __init__(self, topology: Topology, *, link_share: float = 1.0, call_s: float = 0.0) -> None:
        devices = range(topology.num_devices)
        paths = topology.paths()
        self._call_s, self._others = call_s, max(1, len(devices) - 1)
        pairs = [paths[a, b] for a in devices for b in devices if a != b]
        ring = [paths[a, b] for a, b in zip(devices, [*devices[1:], 0], strict=True) if a != b]
        self._pair_latency_s, self._hop_latency_s = _latency_s(pairs), _latency_s(ring)
        self._pair_byte_s = _busiest_byte_s(pairs) / self._others / link_share
        self._ring_byte_s = _busiest_byte_s(ring) / link_share

    def spread_s(self, nbytes: float) -> float:
        """Each to each other an even part, all at once: an all-to-all, and a reduce-scatter done so."""
        return self._call_s + self._pair_latency_s + nbytes * self._pair_byte_s

    def ring_s(self, nbytes: float) -> float:
        """Each to its neighbour, in as many rounds as there are other devices."""
        return self._call_s + self._others * self._hop_latency_s + nbytes * self._ring_byte_s

    def shared_s(self, nbytes: float) -> float:
        """A reduce-scatter or an all-gather, the way that is faster."""
        return min(self.spread_s(nbytes), self.ring_s(nbytes))


def _latency_s(paths: Iterable[Sequence[Link]]) -> float:
    return max((sum(link.latency_s for link in path) for path in paths), default=0.0)


def _busiest_byte_s(paths: Iterable[Sequence[Link]]) -> float:
    """Seconds of the busiest link, in one direction, for a byte along each path."""
    carried = Counter(link for path in paths for link in path)
    return max((count / link.bytes_per_s for link, count in carried.items()), default=0.0)
