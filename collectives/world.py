"""World: all ranks of one model, and how a process becomes one of them."""

import contextlib
import datetime
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from smoe.collectives.group import Group, SoloGroup
from smoe.collectives.ledger import Ledger
from smoe.collectives.process_group import ProcessGroup
from smoe.collectives.sockets.group import SocketGroup
from smoe.collectives.sockets.mesh import Mesh
from smoe.core.errors import CollectiveError
from smoe.core.parallel import Backend


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldPlan:
    """`hosts[r]` names the host of rank r; `host`, `port` is where rank 0 listens while the others join.

    An exchange that takes longer than `timeout_s` fails, joining included. `backend` carries the exchanges: `auto` is
    nccl between CUDA devices and sockets, our own connections, elsewhere.
    """

    rank: int
    hosts: tuple[str, ...]
    host: str
    port: int
    timeout_s: float = 60.0
    backend: Backend = "auto"

    @property
    def size(self) -> int:
        return len(self.hosts)

    @property
    def ranks_on_host(self) -> int:
        return self.hosts.count(self.hosts[self.rank])


class World:
    """`all` has every rank, `stretch` cuts them into smaller groups.

    One world a process where torch.distributed carries it, which keeps it by the process.
    """

    all: Group

    def __init__(self, plan: WorldPlan, *, device: torch.device | str = "cpu") -> None:
        """Waits until all ranks have joined. Raises CollectiveError when one does not within the time limit."""
        self.plan, self.ledger = plan, Ledger(plan.rank, plan.hosts)
        self._limit = datetime.timedelta(seconds=plan.timeout_s)
        self._mesh: Mesh | None = None
        self._num_stretches = 0
        backend = plan.backend
        if backend == "auto":
            backend = "nccl" if torch.device(device).type == "cuda" else "sockets"
        what = f"joining as rank {plan.rank} of {plan.size} at {plan.host}:{plan.port}"
        with _failing(what):
            store = dist.TCPStore(  # type: ignore[attr-defined]  # exported, but not by name
                plan.host, plan.port, plan.size, is_master=plan.rank == 0, timeout=self._limit
            )
        if backend == "sockets":
            self._store: Any = store  # where rank 0 listens, as long as this lives
            self._mesh = Mesh(store, plan.rank, plan.size, _own_address(plan), plan.timeout_s)
            self.all = SocketGroup(self._mesh, range(plan.size), self.ledger, number=0)
            return
        with _failing(what):
            dist.init_process_group(backend, store=store, rank=plan.rank, world_size=plan.size, timeout=self._limit)
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
        cut = [range(first, first + size) for first in range(0, self.plan.size, size)]
        own = self.plan.rank // size
        if self._mesh is not None:
            self._num_stretches += 1
            return SocketGroup(self._mesh, cut[own], self.ledger, number=self._num_stretches)
        with _failing(f"groups of {size} ranks"):
            # Each rank makes all groups, as torch.distributed asks for, and keeps its own.
            groups = [dist.new_group(list(ranks), timeout=self._limit) for ranks in cut]
        return ProcessGroup(groups[own], self.ledger)

    def close(self) -> None:
        """Leaves; idempotent. The other ranks' exchanges fail from then on."""
        if self._mesh is not None:
            self._mesh.close()
        elif dist.is_initialized():
            dist.destroy_process_group()


@contextlib.contextmanager
def _failing(what: str) -> Iterator[None]:
    """torch has no narrower classes than these for ranks that do not come."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        raise CollectiveError(f"{what}: {str(error).splitlines()[0]}") from error


def _own_address(plan: WorldPlan) -> str:
    """The address of this host that faces rank 0."""
    if plan.rank == 0:
        return plan.host
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((plan.host, plan.port))  # of datagrams: nothing is sent
        return str(probe.getsockname()[0])


def free_port(host: str = "") -> int:
    """A port that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
