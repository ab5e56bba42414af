"""A Ray to run on: the cluster at RAY_ADDRESS, the one already connected, or a small local one started here."""

import atexit
import contextlib
import logging
import os
import secrets
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import psutil

from smoe.core.errors import StartupError

log = logging.getLogger(__name__)

_PREFIX = "smoe-ray-"
_OBJECT_STORE_BYTES = 80 * 2**20
# Ray puts sockets about 75 characters below its directory, and a socket's path has at most 107.
_MAX_TMP_LENGTH = 20
_KNOCK_S = 5.0
_SIGNAL_GRACE_S = 2.0
_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "0",
    # Ray runs its workers at niceness 15; the model is what this machine is for.
    "RAY_worker_niceness": "0",
}


class RaySession:
    """A connection to Ray; `close` undoes what making it did, and no more. Close may be called twice."""

    def __init__(self, *, connected: bool, directory: Path | None) -> None:
        self._connected = connected
        self._directory = directory
        self._servers: list[psutil.Process] = []
        self._signalled = False

    @property
    def local(self) -> bool:
        """Whether this session started the Ray it uses."""
        return self._directory is not None

    def watch_servers(self, before: set[int]) -> None:
        """Remembers the processes of a Ray just started here: children that were not there `before`."""
        self._servers = [child for child in psutil.Process().children() if child.pid not in before]

    def noting(self, handler: Callable[[int, FrameType | None], object]) -> Callable[[int, FrameType | None], object]:
        """The signal handler, made to tell this session that a signal asked the process to end."""

        def noted(number: int, frame: FrameType | None) -> object:
            self._signalled = True
            return handler(number, frame)

        return noted

    def lost(self) -> bool:
        """Whether a signal to our process group has ended the local Ray, which shares the group.

        After a signal this waits for a moment: the servers may be about to end.
        """
        deadline = time.monotonic() + (_SIGNAL_GRACE_S if self._signalled else 0.0)
        while all(_runs(server) for server in self._servers):
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.05)
        return True

    def close(self) -> None:
        import ray

        if self._connected:
            self._connected = False
            if self.lost():
                # Ray's own shutdown would wait a minute for its servers, here or at exit.
                atexit.unregister(ray.shutdown)
                _end_all(psutil.Process().children(recursive=True), self._servers)
            else:
                ray.shutdown()
            for server in self._servers:
                # Semaphores of compiled graphs whose actors died; their names begin with the pid of the raylet.
                for kind in ("hdr", "obj"):
                    for path in Path("/dev/shm").glob(f"sem.{kind}{server.pid}-*"):
                        path.unlink(missing_ok=True)
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None


def _runs(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def _end_all(children: list[psutil.Process], servers: list[psutil.Process]) -> None:
    """Ends the servers that are left and the workers below them; workers end with their raylet anyway."""
    known = {server.pid for server in servers}
    for process in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            if known & {process.pid, *(parent.pid for parent in process.parents())}:
                process.kill()


def open_ray(num_cpus: int) -> RaySession:
    """Connects, starting a local Ray with `num_cpus` when there is no other. Raises StartupError."""
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    address = os.environ.get("RAY_ADDRESS") or None
    if address is None:
        _own_token()
    logging.getLogger("ray").setLevel(logging.ERROR)
    import ray

    if ray.is_initialized():
        return RaySession(connected=False, directory=None)
    if address is not None:
        return _connect(address)
    return _start(num_cpus)


def _connect(address: str) -> RaySession:
    import ray

    session = RaySession(connected=True, directory=None)
    try:
        _knock(address)
        with _kept_signal_handlers(session):
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        first = str(error).strip().splitlines()[0]
        raise StartupError(f"RAY_ADDRESS: {address!r} (a running Ray cluster; {first})") from error
    return session


def _knock(address: str) -> None:
    """Fails within seconds where nobody listens; Ray itself tries for minutes. Raises OSError or ValueError."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError("expected auto, or host:port of the head node")
    socket.create_connection((host, int(port)), timeout=_KNOCK_S).close()


@contextlib.contextmanager
def _kept_signal_handlers(session: RaySession) -> Iterator[None]:
    """Ray handles SIGTERM by dumping stacks and dying in the middle; whoever made this process has better plans."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, session.noting(handler) if callable(handler) else handler)


def _start(num_cpus: int) -> RaySession:
    import ray

    root = Path(tempfile.gettempdir())
    if len(str(root)) > _MAX_TMP_LENGTH:
        root = Path("/tmp")
    _sweep(root)
    directory = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=root))
    session = RaySession(connected=True, directory=directory)
    before = {child.pid for child in psutil.Process().children()}
    try:
        with _kept_signal_handlers(session):
            ray.init(
                address="local",
                num_cpus=num_cpus,
                object_store_memory=_OBJECT_STORE_BYTES,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                configure_logging=False,
                _temp_dir=str(directory),
            )
    except BaseException as error:
        session.close()
        if not isinstance(error, Exception):
            raise
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise StartupError(f"the local Ray did not start ({first})") from error
    session.watch_servers(before)
    return session


def _own_token() -> None:
    """Authenticates the local Ray with a token of this process, instead of one that Ray would write to ~/.ray."""
    chosen = {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & set(os.environ)
    if not chosen and not (Path.home() / ".ray" / "auth_token").exists():
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


def _sweep(root: Path) -> None:
    """Removes directories of ours whose process was killed before it could."""
    for directory in root.glob(f"{_PREFIX}*"):
        pid = directory.name.removeprefix(_PREFIX).split("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            with contextlib.suppress(OSError):  # another process of the same user may be sweeping too
                shutil.rmtree(directory)
