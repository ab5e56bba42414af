"""A Ray cluster of one raylet a host, and programs that use it from the first host."""

import contextlib
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from smoe.bench.comm.namespaces import Network

ROOT = Path(__file__).parent.parent.parent
PORT = 6391
_START_S = 90.0


class Raylets:
    """`hosts` are the namespaces, `environment` is what programs need to find the cluster."""

    def __init__(self, network: Network, folder: Path) -> None:
        self._network, self._log, self.hosts = network, folder / "raylets.log", network.namespaces
        self.address = f"{network.addresses[0]}:{PORT}"
        self.environment = os.environ | {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_ADDRESS": self.address,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
            "GLOO_SOCKET_IFNAME": "eth0",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
        }
        self._starting = {name: value for name, value in self.environment.items() if name != "RAY_ADDRESS"}
        for host, address in enumerate(network.addresses):
            where = (
                ("--head", f"--port={PORT}", f"--temp-dir={folder}", "--include-dashboard=false")
                if host == 0
                else (f"--address={self.address}",)
            )
            self._start(host, f"--node-ip-address={address}", *where)
            self._wait(hosts=host + 1)

    def run(self, *arguments: str) -> str:
        """What `python ...` prints on the first host. A failure shows what it said."""
        done = subprocess.run(
            self._network.command(0, sys.executable, *arguments),
            capture_output=True,
            text=True,
            env=self.environment,
            cwd=ROOT,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stdout

    def _start(self, host: int, *options: str) -> None:
        common = ("--num-cpus=1", "--num-gpus=0", "--object-store-memory=80000000", "--disable-usage-stats")
        ray = (sys.executable, "-m", "ray.scripts.scripts", "start", *options, *common)
        with self._log.open("ab") as log:
            command = self._network.command(host, *ray)
            subprocess.run(command, stdout=log, stderr=log, env=self._starting, check=True, timeout=_START_S)

    def _wait(self, hosts: int) -> None:
        deadline = time.monotonic() + _START_S
        count = "import ray; ray.init(logging_level='ERROR'); print(sum(n['Alive'] for n in ray.nodes()))"
        while int(self.run("-c", count).split()[-1]) < hosts:
            assert time.monotonic() < deadline, f"{hosts} raylets: {self._log.read_text()[-4000:]}"


@contextlib.contextmanager
def raylets(network: Network) -> Iterator[Raylets]:
    """Ends with the network, whose closing ends everything on its hosts."""
    # Ray's sockets lie deep below this folder, and their paths must be short.
    with tempfile.TemporaryDirectory(prefix="smoe-net-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        try:
            yield Raylets(network, Path(folder))
        finally:
            network.close()
