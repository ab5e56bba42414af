"""Hosts on one machine: network namespaces that a bridge joins, each behind a link of a chosen rate. Needs root."""

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from smoe.core.errors import ConfigError

PREFIX = "smoe-net-"
_SUBNET = "10.77.0"
BURST_S = 0.002
"""What a link lets through at once after a pause, in its own time: little, so that small messages are slowed down too,
but more than timers are late by, or the link falls short of its rate: with 1 ms, four ranks on two busy cores got 110
to 160 of 200 Mbit/s."""
_SEGMENT_BYTES = 32768
"""What a link is handed at once, less than it lets through at once at the slowest rate: or the shaper cuts it into
packets itself, which took a tenth of two cores."""
_QUEUE_BYTES = 8_000_000
"""Longer than what senders may have on their way, so that a collision of four is a wait and no loss."""


def why_not() -> str | None:
    """What keeps this machine from having namespaces, if anything."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"network namespaces need {' and '.join(missing)} (package iproute2)"
    try:
        sweep()
        with Network(1) as network:
            network.shape(1000)
    except ConfigError as error:
        return str(error)
    return None


class Network:
    """`hosts` namespaces at `addresses`, each linked to the others through a switch, itself a namespace: nothing of it
    shows in the machine's own network. Closing ends whatever still runs inside."""

    def __init__(self, hosts: int) -> None:
        """Removes what killed runs have left, too. Raises ConfigError where it cannot be made."""
        self._prefix = f"{PREFIX}{os.getpid()}-"
        self.namespaces = tuple(f"{self._prefix}{host}" for host in range(hosts))
        self.addresses = tuple(f"{_SUBNET}.{host + 1}" for host in range(hosts))
        self._switch = f"{self._prefix}switch"
        sweep()
        try:
            self._make()
        except BaseException:
            self.close()
            raise

    def shape(self, mbit_per_s: int | None) -> None:
        """Sets the rate of every host's link, both ways; None takes the limit off."""
        for host, namespace in enumerate(self.namespaces):
            for where, link in ((namespace, "eth0"), (self._switch, f"port{host}")):
                if mbit_per_s is None:
                    _run("tc", "-n", where, "qdisc", "replace", "dev", link, "root", "pfifo", "limit", "10000")
                    continue
                burst = int(BURST_S * mbit_per_s * 1e6 / 8)
                limits = ("rate", f"{mbit_per_s}mbit", "burst", str(burst), "limit", str(_QUEUE_BYTES))
                _run("tc", "-n", where, "qdisc", "replace", "dev", link, "root", "tbf", *limits)

    def command(self, host: int, *arguments: str) -> list[str]:
        """Runs `arguments` on a host."""
        return ["ip", "netns", "exec", self.namespaces[host], *arguments]

    def close(self) -> None:
        """Idempotent."""
        for namespace in (*self.namespaces, self._switch):
            _remove(namespace)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _make(self) -> None:
        _run("ip", "netns", "add", self._switch)
        _run("ip", "-n", self._switch, "link", "add", "bridge0", "type", "bridge")
        _run("ip", "-n", self._switch, "link", "set", "bridge0", "up")
        for host, (namespace, address) in enumerate(zip(self.namespaces, self.addresses, strict=True)):
            port = f"port{host}"
            _run("ip", "netns", "add", namespace)
            peer = ("peer", "name", "eth0", "netns", namespace)
            _run("ip", "-n", self._switch, "link", "add", port, "type", "veth", *peer)
            _run("ip", "-n", self._switch, "link", "set", port, "master", "bridge0", "up")
            _run("ip", "-n", namespace, "addr", "add", f"{address}/24", "dev", "eth0")
            for link in ("lo", "eth0"):
                _run("ip", "-n", namespace, "link", "set", link, "up")
            for where, link in ((namespace, "eth0"), (self._switch, port)):
                _run("ip", "-n", where, "link", "set", "dev", link, "gso_max_size", str(_SEGMENT_BYTES))


def sweep() -> None:
    """Removes the namespaces of runs that were killed before they could."""
    folder = Path("/run/netns")
    for path in folder.glob(f"{PREFIX}*") if folder.is_dir() else ():
        pid = path.name.removeprefix(PREFIX).split("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            _remove(path.name)


def _remove(namespace: str) -> None:
    """With the processes inside, and by that with its links."""
    listed = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True, check=False)
    for pid in map(int, listed.stdout.split()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)


def _run(*command: str) -> None:
    done = _try(command)
    if done.returncode:
        said = (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1]
        raise ConfigError("network", " ".join(command), f"namespaces of this machine; it said: {said}")


def _try(command: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise ConfigError("network", command[0], "installed (package iproute2)") from error
