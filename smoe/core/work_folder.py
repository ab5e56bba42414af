"""A folder in which slow work keeps what it has done, so that the same command can go on with it."""

import json
import os
from pathlib import Path
from typing import Any

from smoe.core.errors import ConfigError, TraceError

_ARGUMENTS = "arguments.json"


def open_work_folder(folder: Path, arguments: dict[str, Any]) -> bool:
    """Makes the folder for work that `arguments` (JSON values) decide; True where it was begun already with the same.

    Raises ConfigError naming the first argument that differs.
    """
    file = folder / _ARGUMENTS
    if not file.exists():
        folder.mkdir(exist_ok=True)
        unfinished = file.with_suffix(".tmp")
        unfinished.write_text(json.dumps(arguments, indent=1, sort_keys=True) + "\n")
        os.replace(unfinished, file)
        return False
    try:
        begun = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise TraceError(f"{file}: {error}") from error
    ours = json.loads(json.dumps(arguments))
    for field in sorted(ours.keys() | begun.keys()):
        if ours.get(field) != begun.get(field):
            limit = f"{begun.get(field)!r}, with which {folder} was begun; remove that folder to begin anew"
            raise ConfigError(field, ours.get(field), limit)
    return True
