"""The living nodes of a Ray cluster."""

import ray
from ray._private import state

from smoe.actors.demand import Node


def living_nodes() -> list[Node]:
    """By name. Ray's public calls tell what nodes have, not what of it is free."""
    free = state.available_resources_per_node()
    nodes = [node for node in ray.nodes() if node["Alive"]]
    return sorted(
        (Node(node["NodeManagerAddress"], node["Resources"], free.get(node["NodeID"], {})) for node in nodes),
        key=lambda node: node.name,
    )
