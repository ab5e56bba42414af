"""Topologies by name, or from a YAML file:

name: two-boxes
hosts:                       # devices by host; their ids count through in this order
  left: [gpu0, gpu1]
  right: [gpu2, gpu3]
switches: [ethernet]         # whatever else a link may end at
links:
  - between: [[gpu0, gpu1], ethernet]     # each of the one with each of the other
    kind: eth                             # nvlink, pcie, upi, ib or eth
    bytes_per_s: 12.5e+9                  # each way
    latency_s: 5.0e-6
device:                                   # if needed, what each device can do at most
  flops_per_s: 989.0e+12                  # dense matrix products in bf16
  memory_bytes_per_s: 3.35e+12
  memory_bytes: 80.0e+9
"""

from pathlib import Path
from typing import Any

from smoe.core.errors import ConfigError
from smoe.core.topology import DeviceRates, Link, Topology
from smoe.core.yaml_file import read_yaml

_FOLDER = Path(__file__).parent.parent / "assets" / "topologies"
_SUFFIX = ".yaml"
_LINK_KEYS = ("between", "kind", "bytes_per_s", "latency_s")
_RATE_KEYS = ("flops_per_s", "memory_bytes_per_s", "memory_bytes")


def topology_names() -> list[str]:
    return sorted(path.name.removesuffix(_SUFFIX) for path in _FOLDER.glob(f"*{_SUFFIX}"))


def open_topology(name: str) -> Topology:
    """A packaged topology, or the file of that name. Raises ConfigError."""
    if name in topology_names():
        return read_topology(_FOLDER / f"{name}{_SUFFIX}")
    if not Path(name).exists():
        raise ConfigError("topology", name, f"a YAML file, or one of {', '.join(topology_names())}")
    return read_topology(name)


def read_topology(path: str | Path) -> Topology:
    """Raises ConfigError naming the file, the field, its value and what was expected."""
    name = str(path)
    raw = _mapping(name, read_yaml(path), ("name", "hosts", "links"), ("switches", "device"))
    hosts = raw["hosts"]
    if not isinstance(hosts, dict) or not hosts:
        raise ConfigError(f"{name}: hosts", hosts, "devices by host, as in left: [gpu0, gpu1]")
    places = [(device, host) for host, devices in hosts.items() for device in _names(f"{name}: hosts.{host}", devices)]
    switches = _names(f"{name}: switches", raw["switches"]) if "switches" in raw else []
    if not isinstance(raw["links"], list):
        raise ConfigError(f"{name}: links", raw["links"], "a list of links")
    links = [link for index, entry in enumerate(raw["links"]) for link in _links(f"{name}: links[{index}]", entry)]
    topology = Topology(
        name=_text(f"{name}: name", raw["name"]),
        devices=tuple(device for device, _ in places),
        hosts=tuple(host for _, host in places),
        switches=tuple(switches),
        links=tuple(links),
        rates=_rates(f"{name}: device", raw["device"]) if "device" in raw else None,
    )
    try:
        topology.validate()
    except ConfigError as error:
        raise ConfigError(f"{name}: {error.field}", error.value, error.limit) from error
    return topology


def _links(field: str, entry: Any) -> list[Link]:
    raw = _mapping(field, entry, _LINK_KEYS)
    between = raw["between"]
    if not isinstance(between, list) or len(between) != 2:
        raise ConfigError(f"{field}.between", between, "two ends, each a name or a list of names")
    ends = [
        _names(f"{field}.between[{index}]", end if isinstance(end, list) else [end])
        for index, end in enumerate(between)
    ]
    kind: Any = _text(f"{field}.kind", raw["kind"])
    figures = {key: _number(f"{field}.{key}", raw[key]) for key in ("bytes_per_s", "latency_s")}
    return [Link(a=a, b=b, kind=kind, **figures) for a in ends[0] for b in ends[1]]


def _rates(field: str, entry: Any) -> DeviceRates:
    raw = _mapping(field, entry, _RATE_KEYS)
    figures = {key: _number(f"{field}.{key}", raw[key]) for key in _RATE_KEYS}
    for key, value in figures.items():
        if not 0 < value < float("inf"):
            raise ConfigError(f"{field}.{key}", value, "above 0")
    return DeviceRates(**figures)


def _mapping(field: str, value: Any, needed: tuple[str, ...], optional: tuple[str, ...] = ()) -> dict[str, Any]:
    keys = f"the keys {', '.join(needed)}{''.join(f', perhaps {key}' for key in optional)}"
    if not isinstance(value, dict):
        raise ConfigError(field, value, keys)
    for key in value:
        if key not in (*needed, *optional):
            raise ConfigError(f"{field}: unknown key {key}", value[key], keys)
    for key in needed:
        if key not in value:
            raise ConfigError(f"{field}: missing key {key}", sorted(value), keys)
    return value


def _names(field: str, value: Any) -> list[str]:
    if not isinstance(value, list) or not value:
        raise ConfigError(field, value, "a list of names")
    return [_text(f"{field}[{index}]", each) for index, each in enumerate(value)]


def _text(field: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigError(field, value, "a name")
    return value


def _number(field: str, value: Any) -> float:
    """YAML reads 63e9 as text; people do not."""
    try:
        if isinstance(value, bool):
            raise ValueError
        return float(value)
    except (TypeError, ValueError) as error:
        raise ConfigError(field, value, "a number") from error
