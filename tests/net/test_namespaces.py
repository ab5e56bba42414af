"""Hosts as namespaces: the link is as slow as it should be, and nothing is left behind."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from smoe.bench.comm import namespaces
from smoe.bench.comm.namespaces import PREFIX, Network, sweep
from smoe.core.errors import ConfigError
from tests.net.conftest import SLOW_MBIT

pytestmark = pytest.mark.net

RECEIVE = """
import json, socket, sys, time
server = socket.create_server((sys.argv[1], 5000))
print("listening", flush=True)
end, _ = server.accept()
got = len(end.recv(1 << 16))
first, began = got, time.monotonic()
while part := end.recv(1 << 20):
    got += len(part)
print(json.dumps([got - first, time.monotonic() - began]), flush=True)
"""
SEND = """
import socket, sys
socket.create_connection((sys.argv[1], 5000)).sendall(bytes(int(sys.argv[2])))
"""


def test_a_link_lets_no_more_through_than_its_rate(network: Network) -> None:
    """Slower it may be on a busy machine, faster never."""
    address = network.addresses[0]
    receiver = network.command(0, sys.executable, "-c", RECEIVE, address)
    with subprocess.Popen(receiver, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "listening\n"
        subprocess.run(network.command(1, sys.executable, "-c", SEND, address, "4000000"), check=True)
        nbytes, seconds = json.loads(process.stdout.readline())
    assert nbytes > 3_000_000
    assert 8e-6 * nbytes / seconds < 1.1 * SLOW_MBIT


def test_hosts_are_not_the_machine(network: Network) -> None:
    """No way in from outside, and no way out."""
    done = subprocess.run(network.command(0, "ip", "route"), capture_output=True, text=True, check=True)
    assert done.stdout.split()[0] == "10.77.0.0/24"
    assert len(done.stdout.splitlines()) == 1


@pytest.mark.usefixtures("can_network")
def test_closing_ends_what_runs_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces, "PREFIX", "smoe-tst-")
    with Network(1) as own:
        left = subprocess.Popen(own.command(0, "sleep", "600"))
        # The process is inside once its command has taken the place of `ip`.
        while "sleep" not in Path(f"/proc/{left.pid}/comm").read_text():
            os.sched_yield()
    assert left.wait(timeout=30) != 0
    assert not list(Path("/run/netns").glob("smoe-tst-*"))


@pytest.mark.usefixtures("can_network")
def test_what_a_killed_run_left_is_swept_and_what_runs_is_not() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    names = [f"{PREFIX}{gone.pid}-0", f"{PREFIX}{os.getpid()}-spare"]
    try:
        for name in names:
            subprocess.run(["ip", "netns", "add", name], check=True)
        sweep()
        assert [Path(f"/run/netns/{name}").exists() for name in names] == [False, True]
    finally:
        subprocess.run(["ip", "netns", "del", names[1]], check=True)


def test_without_root_it_says_so_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from smoe.bench.comm.run import run

    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ConfigError, match=r"^bench comm: .*\(network namespaces need root\)$"):
        run(None, quick=True, cache=tmp_path, out=tmp_path)
