"""A server, ours or another, as a child process that ends with the benchmark."""

import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO

from smoe.core.errors import StartupError

_LOOK_S = 0.1
_END_S = 60.0


@dataclass(frozen=True, slots=True)
class Served:
    url: str
    pid: int


@contextmanager
def own_server(flags: Sequence[str], *, start_s: float = 600.0) -> Iterator[str]:
    """Runs `smoe serve FLAGS` on a free port; gives its base URL once it takes requests. Raises StartupError."""
    with served("smoe serve", [sys.executable, "-m", "smoe", "serve", *flags], start_s=start_s) as server:
        yield server.url


@contextmanager
def served(name: str, command: Sequence[str], *, start_s: float = 600.0) -> Iterator[Served]:
    """Any server that takes --host and --port and has /health. Raises StartupError."""
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        port = door.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryFile() as log:
        child = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)], stdout=log, stderr=log, stdin=subprocess.DEVNULL
        )
        try:
            _wait(name, child, f"{url}/health", start_s, log)
            yield Served(url, child.pid)
        finally:
            _end(child)


def _wait(name: str, child: "subprocess.Popen[bytes]", health: str, start_s: float, log: BinaryIO) -> None:
    deadline = time.monotonic() + start_s
    while time.monotonic() < deadline:
        if child.poll() is not None:
            log.seek(0)
            lines = log.read().decode(errors="replace").strip().splitlines()
            raise StartupError(f"{name}: {lines[-1] if lines else f'exit code {child.returncode}'}", "\n".join(lines))
        if _is_ready(health):
            return
        time.sleep(_LOOK_S)
    raise StartupError(f"{name}: takes no requests after {start_s:g} s")


def _is_ready(health: str) -> bool:
    try:
        with urllib.request.urlopen(health, timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _end(child: "subprocess.Popen[bytes]") -> None:
    child.terminate()
    try:
        child.wait(_END_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
