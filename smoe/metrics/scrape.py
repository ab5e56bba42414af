"""What a server said at /metrics at one time, and what changed between two of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Self

from prometheus_client.parser import text_string_to_metric_families

from smoe.metrics.histogram import quantile
from smoe.metrics.prometheus import PREFIX

_COUNTED = ("_total", "_bucket", "_count", "_sum")


class _Key(NamedTuple):
    name: str
    labels: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Scrape:
    """`at_s` is Unix time. Several series of one name, as of replicas, are added up where no label tells which."""

    at_s: float
    samples: Mapping[_Key, float]

    @classmethod
    def parse(cls, text: str, at_s: float) -> Self:
        """Raises ValueError for what is not Prometheus' text format, or not of a smoe server."""
        samples = {
            _Key(sample.name, tuple(sorted(sample.labels.items()))): float(sample.value)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name.startswith(PREFIX)
        }
        if not samples:
            raise ValueError(f"no metric that begins with {PREFIX}")
        return cls(at_s, samples)

    def beginning(self) -> Self:
        """What the same server would have said when its counts began."""
        since_s = self.value("counting_since_seconds")
        zeros = {key: 0.0 if key.name.endswith(_COUNTED) else value for key, value in self.samples.items()}
        return type(self)(since_s or self.at_s, zeros)

    def counts_on_from(self, earlier: Self) -> bool:
        """False after a restart or a reset in between."""
        return self.value("counting_since_seconds") == earlier.value("counting_since_seconds")

    def value(self, name: str, **labels: str) -> float | None:
        """None where there is no such sample."""
        wanted = labels.items()
        found = [
            v for key, v in self.samples.items() if key.name == PREFIX + name and wanted <= dict(key.labels).items()
        ]
        return sum(found) if found else None

    def labelled(self, name: str, label: str) -> dict[str, float]:
        """By the value of one label."""
        found: dict[str, float] = {}
        for key, value in self.samples.items():
            if key.name == PREFIX + name and (which := dict(key.labels).get(label)) is not None:
                found[which] = found.get(which, 0.0) + value
        return found


class Change:
    """From `before` to `now`, of one server and without a restart or reset in between."""

    def __init__(self, before: Scrape, now: Scrape) -> None:
        self._before, self.now = before, now
        self.seconds = now.at_s - before.at_s

    def count(self, name: str, **labels: str) -> float | None:
        """How much a counter has grown."""
        now = self.now.value(name, **labels)
        return None if now is None else now - (self._before.value(name, **labels) or 0.0)

    def rate(self, name: str, **labels: str) -> float | None:
        """A second."""
        count = self.count(name, **labels)
        return None if count is None or self.seconds <= 0 else count / self.seconds

    def ratio(self, part: str, whole: str) -> float | None:
        """None too where there was nothing of the whole."""
        counted, all_of_it = self.count(part), self.count(whole)
        return counted / all_of_it if counted is not None and all_of_it else None

    def quantile(self, name: str, share: float) -> float | None:
        """Of what a histogram has observed meanwhile."""
        now, before = (each.labelled(f"{name}_bucket", "le") for each in (self.now, self._before))
        grown = sorted((float(bound), count - before.get(bound, 0.0)) for bound, count in now.items())
        if not grown:
            return None
        return quantile([bound for bound, _ in grown[:-1]], [int(count) for _, count in grown], share)
