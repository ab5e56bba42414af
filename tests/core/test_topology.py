"""Topologies: the packaged ones, files, and what a path costs."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from smoe.core.errors import ConfigError
from smoe.core.topology import LINK_CLASSES, DeviceRates, Link, Topology
from smoe.core.topology_file import open_topology, read_topology, topology_names

TEXT = """\
name: two-boxes
hosts:
  left: [a, b]
  right: [c]
switches: [s]
links:
  - between: [[a, b], s]
    kind: nvlink
    bytes_per_s: 100.0e+9
    latency_s: 1.0e-6
  - between: [s, c]
    kind: eth
    bytes_per_s: 10e9
    latency_s: 0
"""


def write(tmp_path: Path, old: str = "", new: str = "") -> Path:
    assert old in TEXT
    path = tmp_path / "topology.yaml"
    path.write_text(TEXT.replace(old, new, 1) if old else TEXT)
    return path


def test_a_file(tmp_path: Path) -> None:
    topology = read_topology(write(tmp_path))
    assert topology == open_topology(str(tmp_path / "topology.yaml"))
    assert topology.devices == ("a", "b", "c")
    assert topology.hosts == ("left", "left", "right")
    assert topology.links[1] == Link(a="b", b="s", kind="nvlink", bytes_per_s=100e9, latency_s=1e-6)
    classes = [[LINK_CLASSES[c] for c in row] for row in topology.classes()]
    assert classes[0] == ["same_device", "same_host", "other_host"]
    assert all(classes[a][b] == topology.link_class(a, b) for a in range(3) for b in range(3))
    assert np.allclose(topology.cost() * 1e9, [[0, 0.02, 0.11], [0.02, 0, 0.11], [0.11, 0.11, 0]])


def test_the_graph_has_everything(tmp_path: Path) -> None:
    graph = read_topology(write(tmp_path)).graph()
    assert graph.nodes["b"] == {"device": 1, "host": "left"}
    assert graph.nodes["s"] == {"device": None, "host": None}
    assert graph.edges["s", "c"] == {"kind": "eth", "bytes_per_s": 10e9, "latency_s": 0.0}


BROKEN = [
    ("name: two-boxes\n", "", "missing key name: ['hosts', 'links', 'switches']"),
    ("name: two-boxes", "name: 3", "name: 3 (a name)"),
    (
        "switches:",
        "swtiches:",
        "unknown key swtiches: ['s'] (the keys name, hosts, links, perhaps switches, perhaps device)",
    ),
    ("kind: eth", "kind: token-ring", "links[2].kind: 'token-ring' (one of nvlink, pcie, upi, ib, eth)"),
    ("    kind: eth\n", "", "links[1]: missing key kind: ['between', 'bytes_per_s', 'latency_s']"),
    ("kind: eth", "kind: eth\n    lanes: 4", "links[1]: unknown key lanes: 4 (the keys between, kind"),
    ("10e9", "-1", "links[2].bytes_per_s: -1.0 (above 0"),
    ("10e9", ".inf", "links[2].bytes_per_s: inf (above 0"),
    ("10e9", ".nan", "links[2].bytes_per_s: nan (above 0"),
    ("10e9", "fast", "links[1].bytes_per_s: 'fast' (a number)"),
    ("10e9", "true", "links[1].bytes_per_s: True (a number)"),
    ("latency_s: 0", "latency_s: -1", "links[2].latency_s: -1.0 (0 or above"),
    ("[s, c]", "[s, d]", "links[2].between: 'd' (a device or a switch by its name)"),
    ("[s, c]", "[s, s]", "links[2].between: 's' (two ends)"),
    ("[s, c]", "[s, a]", "links[2].between: ['s', 'a'] (ends that no link connects yet)"),
    ("[s, c]", "[s]", "links[1].between: ['s'] (two ends, each a name or a list"),
    ("[s, c]", "[s, []]", "links[1].between[1]: [] (a list of names)"),
    ("[s, c]", "[s, 4]", "links[1].between[1][0]: 4 (a name)"),
    ("[a, b], s", "[a], s", "links: 'a and b' (connected devices)"),
    ("right: [c]", "right: [b]", "devices and switches: 'b' (a name that is used once)"),
    ("switches: [s]", "switches: [s, c]", "devices and switches: 'c'"),
    ("right: [c]", "right: c", "hosts.right: 'c' (a list of names)"),
    ("right: [c]", "left: [c]", "line 4: 'left' (a key that is not there yet)"),
    ("right: [c]", "1: [c]", "line 4: 1 (a name)"),
    ("  left: [a, b]\n  right: [c]\n", "  - a\n", "hosts: ['a'] (devices by host"),
    ("name: two-boxes", "name: [", "YAML: "),
]


@pytest.mark.parametrize(("old", "new", "message"), BROKEN)
def test_a_file_that_is_wrong(old: str, new: str, message: str, tmp_path: Path) -> None:
    path = write(tmp_path, old, new)
    with pytest.raises(ConfigError, match=re.escape(message)) as error:
        read_topology(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


RATES = "  latency_s: 0\ndevice: {flops_per_s: 1e+12, memory_bytes_per_s: 2e+9, memory_bytes: 3e+9}"


def test_what_a_device_can_do(tmp_path: Path) -> None:
    found = read_topology(write(tmp_path, "  latency_s: 0", RATES)).rates
    assert found == DeviceRates(flops_per_s=1e12, memory_bytes_per_s=2e9, memory_bytes=3e9)
    assert read_topology(write(tmp_path)).rates is None
    for old, new, message in (
        ("3e+9", "0", "device.memory_bytes: 0.0 (above 0)"),
        ("2e+9", ".inf", "device.memory_bytes_per_s: inf (above 0)"),
        ("1e+12", "many", "device.flops_per_s: 'many' (a number)"),
        (", memory_bytes: 3e+9", "", "device: missing key memory_bytes: ['flops_per_s', 'memory_bytes_per_s']"),
    ):
        with pytest.raises(ConfigError, match=re.escape(message)):
            read_topology(write(tmp_path, "  latency_s: 0", RATES.replace(old, new)))


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"topology: 'ring' \(a YAML file, or one of 2nodes-x8, 2x4-pcie-upi, 8gpu-"):
        open_topology("ring")
    with pytest.raises(ConfigError, match="a readable file: Is a directory"):
        open_topology(str(tmp_path))
    for content in (b"", b"- 1", b"\xff\xfe\xff", b"[" * 1500):
        (tmp_path / "t.yaml").write_bytes(content)
        with pytest.raises(ConfigError):
            read_topology(tmp_path / "t.yaml")


def test_the_packaged_ones() -> None:
    assert topology_names() == ["2nodes-x8", "2x4-pcie-upi", "8gpu-nvswitch", "8xh100-nvlink", "8xh100-pcie"]
    found = {name: open_topology(name) for name in topology_names()}
    assert all(topology.name == name for name, topology in found.items())
    assert [t.num_devices for t in found.values()] == [16, 8, 8, 8, 8]
    assert [t.rates is not None for t in found.values()] == [False, False, False, True, True]
    switch = found["8gpu-nvswitch"]
    assert len(np.unique(switch.cost()[~np.eye(8, dtype=bool)].round(15))) == 1, "all pairs alike"
    sockets = found["2x4-pcie-upi"].cost()
    assert sockets[0, 1] == pytest.approx(2 / 63e9)
    assert sockets[0, 4] == pytest.approx(2 / 63e9 + 1 / 20e9)
    nodes = found["2nodes-x8"]
    assert [link.kind for link in nodes.paths()[0, 7]] == ["nvlink", "nvlink"], "not over the slower fabric"
    assert [link.kind for link in nodes.paths()[0, 8]] == ["ib", "ib"]
    assert nodes.classes()[0].tolist() == [0] + [1] * 7 + [2] * 8


def test_paths_are_turned_and_do_not_depend_on_the_order_of_links() -> None:
    """A square: two ways of the same cost from a to c."""
    links = [
        Link(a=a, b=b, kind="pcie", bytes_per_s=1e9, latency_s=1e-6)
        for a, b in (("a", "x"), ("x", "c"), ("a", "w"), ("w", "c"))
    ]
    found = []
    for order in (links, links[::-1]):
        square = Topology(name="square", devices=("a", "c"), hosts=("h", "h"), switches=("x", "w"), links=tuple(order))
        square.validate()
        found.append(square.paths())
    assert found[0] == found[1]
    assert [(link.a, link.b) for link in found[0][1, 0]] in ([("c", "w"), ("w", "a")], [("c", "x"), ("x", "a")])


def test_latency_matters_for_the_way_taken() -> None:
    slow_start = Link(a="a", b="b", kind="eth", bytes_per_s=100e9, latency_s=1.0)
    links = (slow_start, *(Link(a=e, b="s", kind="pcie", bytes_per_s=1e9, latency_s=1e-6) for e in "ab"))
    topology = Topology(name="t", devices=("a", "b"), hosts=("h", "h"), switches=("s",), links=links)
    assert [link.kind for link in topology.paths()[0, 1]] == ["pcie", "pcie"]


def test_one_device_needs_no_link(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text("name: one\nhosts: {h: [gpu]}\nlinks: []\n")
    assert read_topology(tmp_path / "one.yaml").cost().tolist() == [[0.0]]


def test_a_topology_is_light_until_its_graph_is_asked_for() -> None:
    code = (
        "import sys, smoe.core.topology_file, smoe.core.placement_file; print([m for m in sys.modules if m in HEAVY])"
    )
    heavy = "HEAVY = ('networkx', 'yaml', 'scipy', 'torch', 'matplotlib', 'pandas'); "
    done = subprocess.run([sys.executable, "-c", heavy + code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
