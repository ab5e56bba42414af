"""`smoe doctor`: what this machine has, measured."""

import os
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from smoe.cli import options
from smoe.core.errors import ConfigError, SmoeError

if TYPE_CHECKING:
    from smoe.offload.readahead import Readahead

NAME = "doctor"
EXAMPLE = options.example("smoe doctor --dir /var/tmp")

_DISK_BYTES = 256 << 20
_BLOCK_BYTES = 4 << 20
_MEMORY_BYTES = 512 << 20
_REPEATS = 3
_TEMPORARY = Path(tempfile.gettempdir())

FAILED = 1


def command(
    directory: Annotated[
        Path,
        typer.Option(
            "--dir", metavar="DIR", help="Where to measure the disk; default: the folder for temporary files."
        ),
    ] = _TEMPORARY,
    json: Annotated[bool, typer.Option("--json", help="Print the findings as a JSON object.")] = False,
) -> int:
    """Show versions, devices and kernels in use; measure disk and memory; start a local Ray."""
    if not directory.is_dir():
        raise ConfigError("dir", str(directory), "a folder")
    from smoe.bench import environment
    from smoe.bench.bandwidth import read_bandwidth, typical
    from smoe.kernels import native
    from smoe.offload.readahead import cache_file, known_readahead

    found: dict[str, Any] = environment.describe()
    disk_bytes_per_s, direct = _disk(directory)
    found["cpu_kernels"] = native.describe()
    found["memory_read_bytes_per_s"] = typical(read_bandwidth(_MEMORY_BYTES, _REPEATS))
    found["disk_read_bytes_per_s"] = disk_bytes_per_s
    found["disk_direct"] = direct
    readahead = known_readahead(directory)
    found["expert_reads"] = asdict(readahead)
    found["expert_reads_file"] = str(cache_file())
    found["ray"] = _ray()
    if json:
        import json as json_module

        print(json_module.dumps(found, indent=1))
    else:
        _print(found, directory, _reads(readahead, cache_file()))
    return FAILED if "error" in found["ray"] else 0


def _disk(directory: Path) -> tuple[float, bool]:
    """Bytes/s of reading a fresh file in large blocks, and whether past the page cache (the median of repeats).

    Raises ConfigError when the folder cannot take the file.
    """
    from smoe.kernels import alloc_huge
    from smoe.offload.files import StoreFile

    handle, name = -1, ""
    try:
        handle, name = tempfile.mkstemp(prefix="smoe-doctor-", dir=directory)
        block = os.urandom(_BLOCK_BYTES)
        for _ in range(_DISK_BYTES // _BLOCK_BYTES):
            os.write(handle, block)
        os.fsync(handle)
        os.posix_fadvise(handle, 0, _DISK_BYTES, os.POSIX_FADV_DONTNEED)
        file = StoreFile(name, needed_bytes=_DISK_BYTES)
        memory = memoryview(alloc_huge(_BLOCK_BYTES).numpy())  # type: ignore[arg-type]
        rates = []
        for _ in range(_REPEATS):
            start = time.perf_counter()
            for offset in range(0, _DISK_BYTES, _BLOCK_BYTES):
                file.fill(memory, offset, _BLOCK_BYTES)
            rates.append(_DISK_BYTES / (time.perf_counter() - start))
        file.close()
        return sorted(rates)[len(rates) // 2], file.direct
    except OSError as error:
        raise ConfigError("dir", str(directory), f"room for {_DISK_BYTES} bytes: {error.strerror}") from error
    finally:
        if handle >= 0:
            os.close(handle)
            os.unlink(name)


def _ray() -> dict[str, Any]:
    from smoe.actors.launch import open_ray

    start = time.perf_counter()
    try:
        session = open_ray(num_cpus=1)
    except SmoeError as error:
        return {"error": str(error)}
    started_s = time.perf_counter() - start
    local = session.local
    session.close()
    return {"local": local, "start_s": started_s}


def _reads(readahead: "Readahead", kept_in: Path) -> str:
    if readahead.source == "default":
        return f"{readahead}: nothing measured yet for the disk of --dir in {kept_in}"
    return f"{readahead} in {kept_in}"


def _print(found: dict[str, Any], directory: Path, reads: str) -> None:
    from rich.console import Console
    from rich.table import Table

    from smoe.cli.answers import size

    hardware, ray = found["hardware"], found["ray"]
    how = "direct reads" if found["disk_direct"] else "through the page cache: no direct reads here"
    started = (
        f"{'a local one' if ray.get('local') else 'the cluster at RAY_ADDRESS'}, ready in {ray.get('start_s', 0):.1f} s"
    )
    table = Table(show_header=False)
    for name, value in (
        ("versions", ", ".join(f"{name} {version}" for name, version in found["versions"].items())),
        ("system", hardware["system"]),
        ("processor", f"{hardware['cpu']}, {hardware['cores']} cores, {hardware['threads']} threads in use"),
        ("memory", size(hardware["memory_bytes"])),
        ("GPUs", ", ".join(hardware["gpus"]) or "none"),
        ("CPU kernels", found["cpu_kernels"]),
        ("memory reads", f"{size(found['memory_read_bytes_per_s'])}/s"),
        ("disk reads", f"{size(found['disk_read_bytes_per_s'])}/s at {directory}, {how}"),
        ("expert reads", reads),
        ("Ray", f"error: {ray['error']}" if "error" in ray else started),
    ):
        table.add_row(name, str(value))
    Console().print(table)
