"""The benchmark's end of its ranks: one process a rank, each on a host of a Network, or all on this one."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Self

from smoe.bench.comm.cases import Case, ModelPlan
from smoe.bench.comm.namespaces import Network
from smoe.collectives.world import WorldPlan

_PORT = 29400
_START_S, _ANSWER_S = 180.0, 600.0


class RankError(RuntimeError):
    """A rank ended, failed or hangs; the message says which and why."""


class Ranks:
    """`ask` calls a method of smoe.bench.comm.rank.Rank on all of them at once. Closing ends the processes."""

    def __init__(self, size: int, network: Network) -> None:
        """On the first `size` hosts of the network."""
        self.size = size
        self._hosts = network.addresses[:size]
        self._processes: list[subprocess.Popen[bytes]] = []
        self._ends: list[Connection] = []
        self._stderr = [tempfile.TemporaryFile() for _ in range(size)]  # noqa: SIM115  closed with the processes
        for rank in range(size):
            ours, theirs = socket.socketpair()
            os.set_inheritable(theirs.fileno(), True)
            command = network.command(rank, sys.executable, "-m", "smoe.bench.comm.rank", str(theirs.fileno()))
            with theirs:
                self._processes.append(
                    subprocess.Popen(
                        command,
                        pass_fds=[theirs.fileno()],
                        stdin=subprocess.DEVNULL,
                        stdout=self._stderr[rank],
                        stderr=self._stderr[rank],
                        env=os.environ | {"GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"},
                    )
                )
            self._ends.append(Connection(ours.detach()))

    def join(self, model: ModelPlan, cases: Sequence[Case]) -> None:
        """Makes them one world, with their parts of the model."""
        plans = [
            WorldPlan(rank=rank, hosts=self._hosts, host=self._hosts[0], port=_PORT + self.size, timeout_s=_START_S)
            for rank in range(self.size)
        ]
        for rank, plan in enumerate(plans):
            self._send(rank, "join", (plan, model, tuple(cases)))
        self._answers(_START_S)

    def ask(self, method: str, *arguments: Any) -> list[Any]:
        """What each rank returned. Raises RankError."""
        for rank in range(self.size):
            self._send(rank, method, arguments)
        return self._answers(_ANSWER_S)

    def close(self) -> None:
        """Idempotent."""
        for end in self._ends:
            end.close()
        for process in self._processes:
            process.kill()  # a rank in an exchange would hear of its end only after the time limit
        for process in self._processes:
            process.wait()
        for file in self._stderr:
            file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _send(self, rank: int, method: str, arguments: tuple[Any, ...]) -> None:
        try:
            self._ends[rank].send((method, arguments))
        except OSError:
            raise RankError(f"rank {rank}: {self._why(rank)}") from None

    def _answers(self, timeout_s: float) -> list[Any]:
        deadline = time.monotonic() + timeout_s
        found = []
        for rank, end in enumerate(self._ends):
            if not end.poll(max(0.0, deadline - time.monotonic())):
                raise RankError(f"rank {rank}: no answer in {timeout_s:g} s")
            try:
                answer = end.recv()
            except (EOFError, OSError):
                raise RankError(f"rank {rank}: {self._why(rank)}") from None
            if answer.error is not None:
                raise RankError(f"rank {rank}: {answer.error}")
            found.append(answer.value)
        return found

    def _why(self, rank: int) -> str:
        code = self._processes[rank].wait()
        if code < 0:
            return f"ended by {signal.Signals(-code).name}"
        self._stderr[rank].seek(0)
        lines = self._stderr[rank].read().decode(errors="replace").strip().splitlines()
        return f"ended with {code}: {lines[-1] if lines else 'no message'}"
