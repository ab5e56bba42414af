"""The benchmark's end of a contender's process."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from smoe.bench.offload.worker import Message

_SOURCES = str(Path(__file__).absolute().parents[3])


class ContenderError(RuntimeError):
    """A contender ended or refused; the message says why."""


class Process:
    """`python -m module arguments...`, asked one message at a time. Closing it ends the process.

    It runs the smoe that this process runs, wherever another one may be installed or lie in the working directory.
    """

    def __init__(self, module: str, arguments: Sequence[str] = ()) -> None:
        self._stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115  closed with the process
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, *arguments],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (_SOURCES, os.environ.get("PYTHONPATH"))))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
        )
        self.name = module

    def ask(self, message: Message, *, timeout_s: float = 600.0) -> Message:
        """Raises ContenderError when the process ends, answers an error, or takes longer than `timeout_s`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        watchdog = threading.Timer(timeout_s, self._process.kill)
        watchdog.start()
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            watchdog.cancel()
        if not line:
            raise ContenderError(self._why())
        answer: Message = json.loads(line)
        if "error" in answer:
            raise ContenderError(str(answer["error"]))
        return answer

    def close(self) -> None:
        """Idempotent."""
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # a question that it ended without reading
                self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._stderr.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _why(self) -> str:
        code = self._process.wait()
        if code == -signal.SIGKILL:
            return f"{self.name}: killed (out of memory under its limit, or out of time)"
        self._stderr.seek(0)
        lines = [line for line in self._stderr.read().splitlines() if line.strip()]
        return f"{self.name}: ended with {code}: {lines[-1] if lines else 'no message'}"


def one_line(error: Exception) -> str:
    """What went wrong, for a table."""
    text = " ".join(str(error).split())
    return text if isinstance(error, ContenderError) else f"{type(error).__name__}: {text}"
