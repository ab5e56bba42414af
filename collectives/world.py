"""World: all ranks of one model, and how a process becomes one of them."""

import datetime
import socket
from dataclasses import dataclass

import torch
import torch.distributed as dist

from smoe.collectives.group import Group, SoloGroup
from smoe.collectives.ledger import Ledger
from smoe.collectives.process_group import ProcessGroup
from smoe.core.errors import CollectiveError


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldPlan:
    """`hosts[r]` names the host of rank r; `host`, `port` is where rank 0 listens while the others join.

    An exchange that takes longer than `timeout_s` fails, joining included.
    """

    rank: int
    hosts: tuple[str, ...]
    host: str
    port: int
    timeout_s: float = 60.0

    @property
    def size(self) -> int:
        return len(self.hosts)

    @property
    def ranks_on_host(self) -> int:
        return self.hosts.count(self.hosts[self.rank])


class World:
    """`all` has every rank, `stretch` cuts them into smaller groups.

    One world a process: torch.distributed keeps it by the process.
    """

    def __init__(self, plan: WorldPlan, *, device: torch.device | str = "cpu") -> None:
        """Waits until all ranks have joined. Raises CollectiveError when one does not within the time limit."""
        self.plan = plan
        limit = datetime.timedelta(seconds=plan.timeout_s)
        backend = "nccl" if torch.device(device).type == "cuda" else "gloo"
        try:
            store = dist.TCPStore(  # type: ignore[attr-defined]  # exported, but not by name
                plan.host, plan.port, plan.size, is_master=plan.rank == 0, timeout=limit
            )
            dist.init_process_group(backend, store=store, rank=plan.rank, world_size=plan.size, timeout=limit)
        except (RuntimeError, ValueError) as error:
            what = f"rank {plan.rank} of {plan.size} at {plan.host}:{plan.port}"
            raise CollectiveError(f"joining as {what}: {str(error).splitlines()[0]}") from error
        self.ledger = Ledger(plan.rank, plan.hosts)
        assert dist.group.WORLD is not None
        self.all = ProcessGroup(dist.group.WORLD, self.ledger)

    def stretch(self, size: int) -> Group:
        """This rank's group when the ranks are cut, in their order, into groups of `size`, which divides their number.

        Collective: all ranks of the world call it alike.
        """
        if size == self.plan.size:
            return self.all
        if size == 1:
            return SoloGroup(self.ledger, self.plan.rank)
        limit = datetime.timedelta(seconds=self.plan.timeout_s)
        try:
            # Each rank makes all groups, as torch.distributed asks for, and keeps its own.
            cut = [range(first, first + size) for first in range(0, self.plan.size, size)]
            groups = [dist.new_group(list(ranks), timeout=limit) for ranks in cut]
        except (RuntimeError, ValueError) as error:
            raise CollectiveError(f"groups of {size} ranks: {str(error).splitlines()[0]}") from error
        return ProcessGroup(groups[self.plan.rank // size], self.ledger)

    def close(self) -> None:
        """Leaves; idempotent. The other ranks' exchanges fail from then on."""
        if dist.is_initialized():
            dist.destroy_process_group()


def free_port(host: str = "") -> int:
    """A port that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
