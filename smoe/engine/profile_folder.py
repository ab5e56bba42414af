"""What a profile run keeps beside its output until it is done: arguments, parts of the trace, and what has ended."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smoe.core.errors import ConfigError
from smoe.core.route_parts import Place, find_sequences, join_parts
from smoe.core.work_folder import open_work_folder

_ENDED = "ended.jsonl"


@dataclass(frozen=True, slots=True)
class Kept:
    """Pieces that need not run again, by name: those with their routes in the parts, and those that failed, why."""

    places: dict[str, Place]
    failed: dict[str, str]

    def __contains__(self, name: object) -> bool:
        return name in self.places or name in self.failed


class ProfileFolder:
    """`<out>.parts`. A piece is kept when it has ended with so many rows and a part holds it with as many.

    So routes that were lost with a process, or that end in the middle, count for nothing.
    """

    def __init__(self, out: Path, arguments: dict[str, Any]) -> None:
        """Makes the folder, or goes on with it. Raises ConfigError naming the first argument that differs.

        `arguments` are plain JSON values: all that decides what the trace will be.
        """
        self.path = out.with_name(out.name + ".parts")
        self._out = out
        if out.exists():
            raise ConfigError("out", str(out), "a file that does not exist yet")
        if not out.parent.is_dir():
            raise ConfigError("out", str(out), "in a folder that exists")
        self.resumed = open_work_folder(self.path, arguments)
        if self.resumed:
            self._drop_half_line()

    def kept(self) -> Kept:
        """Raises TraceError for a part that cannot be read."""
        rows, failed = self._read_ended()
        places: dict[str, Place] = {}
        for name, found in find_sequences(self.path).items():
            whole = [place for place in found if place.rows == rows.get(name)]
            if whole:
                places[name] = whole[-1]
        return Kept(places, failed)

    def note_ended(self, name: str, rows: int) -> None:
        self._append({"name": name, "rows": rows})

    def note_failed(self, name: str, error: str) -> None:
        self._append({"name": name, "error": error})

    def finish(self, places: list[Place], labels: tuple[str, ...]) -> None:
        """Writes the trace, whole or not at all, and removes the folder."""
        join_parts(self._out, places, labels)
        shutil.rmtree(self.path)

    def _read_ended(self) -> tuple[dict[str, int], dict[str, str]]:
        rows: dict[str, int] = {}
        failed: dict[str, str] = {}
        file = self.path / _ENDED
        text = file.read_text() if file.exists() else ""
        for line in text.splitlines():
            row = json.loads(line)
            if "error" in row:
                failed[row["name"]] = row["error"]
            else:
                rows[row["name"]] = row["rows"]
        return rows, failed

    def _drop_half_line(self) -> None:
        """All that a killed process can leave behind."""
        file = self.path / _ENDED
        if file.exists():
            data = file.read_bytes()
            file.write_bytes(data[: data.rfind(b"\n") + 1])

    def _append(self, row: dict[str, Any]) -> None:
        file = self.path / _ENDED
        with file.open("a") as stream:
            stream.write(json.dumps(row) + "\n")
