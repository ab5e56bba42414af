"""A whole `smoe` process, and what it leaves behind."""

import os
import signal
import subprocess
import sys
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]


def _heed_interrupts() -> None:
    """A test run in the background of a shell ignores SIGINT, and its children would inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@dataclass
class Traced:
    """A child process whose descendants can be told from all others by a variable that they inherit."""

    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    process: subprocess.Popen[str] | None = None

    def start(self, *arguments: str, **env: str) -> subprocess.Popen[str]:
        variables = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "smoe", *arguments],
            cwd=ROOT,
            env={**variables, "SMOE_TEST_MARK": self.mark, **env},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=_heed_interrupts,
        )
        return self.process

    def descendants(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("SMOE_TEST_MARK") == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found

    def check_nothing_is_left(self, shm_before: set[str]) -> None:
        assert self.process is not None
        _, alive = psutil.wait_procs(self.descendants(), timeout=30)
        assert not alive
        assert not list(Path("/tmp").glob(f"smoe-ray-{self.process.pid}-*"))
        assert not {name for name in os.listdir("/dev/shm") if name not in shm_before and str(self.process.pid) in name}
