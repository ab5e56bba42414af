"""Route traces by name: those that travel with the package, or files."""

from pathlib import Path

from smoe.core.errors import TraceError
from smoe.core.route_trace import RouteTrace, read_route_trace

_FOLDER = Path(__file__).parent.parent / "assets" / "traces"
_SUFFIX = ".safetensors.gz"


_EXPERT_BYTES = {
    "builtin": 3 * 192 * 48 * 2,  # bf16
    "deepseek-v2-lite": 3 * 2048 * 1408 * 2,  # bf16
    "gpt-oss-20b": 3 * 2880 * 2880 * 17 // 32,  # MXFP4: 4 bits, and 8 for every 32
}


def expert_bytes_of(name: str) -> int | None:
    """Bytes of one expert's matrices in the model of a packaged trace, as it is published; None for a file."""
    return _EXPERT_BYTES.get(name)


def packaged_names() -> list[str]:
    return sorted(path.name.removesuffix(_SUFFIX) for path in _FOLDER.glob(f"*{_SUFFIX}"))


def open_trace(name: str) -> RouteTrace:
    """A packaged trace, or the file of that name. Raises TraceError."""
    if name in packaged_names():
        return read_route_trace(_FOLDER / f"{name}{_SUFFIX}")
    if not Path(name).exists():
        raise TraceError(f"{name}: no such file (nor one of the packaged traces {', '.join(packaged_names())})")
    return read_route_trace(name)
