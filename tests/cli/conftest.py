"""The command line in the test's own process."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from smoe.cli.app import run
from tests.models import loading_folders as folders


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


@pytest.fixture
def smoe(capfd: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    def call(*arguments: str) -> Result:
        try:
            code = run(arguments)
        except SystemExit as error:  # --help
            code = error.code if isinstance(error.code, int) else 1
        out, err = capfd.readouterr()
        return Result(code, out, err)

    return call


@pytest.fixture
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails a test in which a model would load or Ray would start."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("an engine was started")

    monkeypatch.setattr("smoe.llm.open_client", refuse)
    monkeypatch.setattr("smoe.actors.launch.open_ray", refuse)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder of a few kilobytes, without a tokenizer; context 64."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    folders.make_folder(folder)
    return folder
