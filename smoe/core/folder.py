"""A folder that appears whole or not at all."""

import contextlib
import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path

from smoe.core.errors import ConfigError


def check_new_folder(field: str, folder: Path, marker: str, *, replace: bool = False) -> None:
    """Raises ConfigError unless `write_folder` may make `folder`: before hours of work rather than after them.

    `replace` allows a folder that holds the file `marker`, so that no other folder is ever deleted.
    """
    if not folder.absolute().parent.is_dir():
        raise ConfigError(field, str(folder), "a folder whose parent exists")
    if not os.access(folder.absolute().parent, os.W_OK | os.X_OK):
        raise ConfigError(field, str(folder), "a folder whose parent can be written to")
    if not os.path.lexists(folder):
        return
    if not replace:
        raise ConfigError(field, str(folder), "a new folder: this one exists")
    if folder.is_symlink() or not (folder / marker).is_file():
        raise ConfigError(field, str(folder), f"a new folder, or one with a {marker} to replace")


def write_folder(field: str, folder: Path, files: Mapping[str, bytes], marker: str, *, replace: bool = False) -> None:
    """Makes `folder` of `files` by name (`a/b` makes a folder within), the file `marker` last.

    Everything is on the disk, under a hidden name beside it, before it gets its name. With `replace` there is a moment
    when neither the old nor the new folder is there. Raises ConfigError, and OSError of the disk.
    """
    check_new_folder(field, folder, marker, replace=replace)
    folder = folder.absolute()
    token = secrets.token_hex(4)
    new, old = (folder.parent / f".{folder.name}.{token}.{what}" for what in ("part", "old"))
    new.mkdir()
    try:
        for name in sorted(files, key=lambda name: (name == marker, name)):
            _write(new / name, files[name])
        for inner in [new, *(path for path in new.rglob("*") if path.is_dir())]:
            _sync(inner)
        if replace and os.path.lexists(folder):
            folder.rename(old)
        try:
            new.rename(folder)
        except OSError as error:
            if os.path.lexists(old):
                old.rename(folder)
            # Somebody else was faster; the system's own words for it do not say so.
            if os.path.lexists(folder):
                raise ConfigError(field, str(folder), "a new folder: this one exists") from error
            raise
        _sync(folder.parent)
    finally:
        for left in (new, old):
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(left)


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
