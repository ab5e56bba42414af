"""Run as a program: two shards on two nodes of a Ray of its own, one node is lost. Prints what became of a request.

The argument is how many spare nodes there are.
"""

import json
import sys
from typing import Any

import ray
from ray import cloudpickle
from ray.cluster_utils import Cluster

from smoe.actors.client import RayClient
from smoe.actors.group import GroupPlan
from smoe.core.config import EngineConfig
from smoe.core.request import Request
from smoe.core.sampling import SamplingParams
from tests.actors import fakes

NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20}


def main(spares: int) -> None:
    cloudpickle.register_pickle_by_value(fakes)
    head = {**NODE, "num_cpus": 0, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        nodes = [cluster.add_node(**NODE) for _ in range(2 + spares)]
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        plan = GroupPlan(num_shards=2, build=fakes.build, strategy="SPREAD", placement_timeout_s=20.0)
        client = RayClient(EngineConfig(), plan)
        try:
            print(json.dumps(lose_a_node(client, cluster, nodes)))
        finally:
            client.shutdown()
            ray.shutdown()
    finally:
        cluster.shutdown()


def lose_a_node(client: RayClient, cluster: Cluster, nodes: list[Any]) -> dict[str, object]:
    client.submit([Request(request_id="r", prompt_token_ids=(1, 2, 3), params=SamplingParams(max_tokens=400))])
    tokens: list[int] = []
    error = None
    lost = False
    while deltas := client.poll():
        for delta in deltas:
            tokens += delta.token_ids
            error = delta.error
        if not lost:
            # The engine's node is another matter: with it the requests are lost.
            [node] = nodes_of("Shard") - nodes_of("Engine")
            cluster.remove_node(next(each for each in nodes if each.node_id == node))
            lost = True
    right = tokens == fakes.expected_tokens([1, 2, 3], len(tokens))
    return {"right": right, "tokens": len(tokens), "error": error, "generation": client.state().generation}


def nodes_of(name: str) -> set[str]:
    actors = ray._private.state.actors().values()
    return {actor["Address"]["NodeID"] for actor in actors if actor["ActorClassName"] == name}


if __name__ == "__main__":
    main(int(sys.argv[1]))
