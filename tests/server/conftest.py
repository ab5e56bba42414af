import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import pytest

from smoe.bench.slo.child import own_server
from tests.server.byte_model import write_byte_model

KEY = "a-key-for-tests"


@dataclass(frozen=True)
class Live:
    """A server of this test run; it wants `key`."""

    url: str
    folder: Path
    key: str = KEY

    @property
    def model(self) -> str:
        return self.folder.name


@pytest.fixture(scope="package")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """`smoe serve` as users start it, over a model whose characters come in pieces."""
    prose = gzip.decompress((files("smoe") / "assets/heldout/prose.txt.gz").read_bytes()).decode()
    folder = write_byte_model(tmp_path_factory.mktemp("bytes"), prose[:100_000])
    flags = ["--in-process", "--threads", "1", "--model", str(folder), "--max-queue", "16", "--api-key", KEY]
    with own_server(flags) as url:
        yield Live(url, folder)
