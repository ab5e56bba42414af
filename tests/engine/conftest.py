from collections.abc import Iterator

import pytest

from smoe.engine.core import EngineCore


@pytest.fixture(autouse=True)
def _integrity(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every core made by a test is checked when the test is over."""
    cores: list[EngineCore] = []
    make = EngineCore.__init__

    def remember(self: EngineCore, *args: object, **kwargs: object) -> None:
        make(self, *args, **kwargs)  # type: ignore[arg-type]
        cores.append(self)

    monkeypatch.setattr(EngineCore, "__init__", remember)
    yield
    for core in cores:
        core.check_integrity()
