"""What shards demand against what nodes have: said when they find no room."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from smoe.core.cluster_config import Strategy

Resources = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Node:
    """A living node: what it has, and how much of it nobody holds."""

    name: str
    total: Resources
    available: Resources


def fitting(bundle: Resources, available: Resources) -> int:
    """Shards that fit beside each other."""
    # Ray counts in steps of 1/10,000; without a margin below that 0.3 / 0.1 would be 2.
    return min((int((available.get(name, 0.0) + 5e-5) / amount) for name, amount in bundle.items()), default=0)


def shortage(
    bundle: Resources, num_shards: int, strategy: Strategy, nodes: Sequence[Node], waited_s: float
) -> tuple[str, str]:
    """One line that says what was asked for and found, and a table with a line for each node."""
    fits = [fitting(bundle, node.available) for node in nodes]
    wanted = ", ".join(f"{name} {amount:g}" for name, amount in bundle.items())
    room = max(fits, default=0) if strategy == "STRICT_PACK" else sum(fits)
    where = "on one node" if strategy == "STRICT_PACK" else f"on {len(nodes)} node{'s' * (len(nodes) != 1)}"
    limit = f"room for {room} {where} after {waited_s:g} s"
    summary = f"placement: {num_shards} x ({wanted}) by {strategy} ({limit})"
    head = ["node", *(f"{name} free/all" for name in bundle), "shards that fit"]
    rows = [["demanded", *(f"{num_shards} x {amount:g}" for amount in bundle.values()), str(num_shards)]]
    for node, count in zip(nodes, fits, strict=True):
        cells = [f"{node.available.get(name, 0.0):g}/{node.total.get(name, 0.0):g}" for name in bundle]
        rows.append([node.name, *cells, str(count)])
    return summary, _aligned([head, *rows])


def _aligned(rows: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    )
