"""Where things of this machine are kept."""

from pathlib import Path

import pytest

from smoe.core.cache_root import cache_root


@pytest.mark.parametrize(
    ("said", "expected"), [("/kept", "/kept/smoe"), ("", "/home/u/.cache/smoe"), (None, "/home/u/.cache/smoe")]
)
def test_a_variable_that_is_empty_counts_as_none(
    monkeypatch: pytest.MonkeyPatch, said: str | None, expected: str
) -> None:
    monkeypatch.setattr(Path, "home", lambda: Path("/home/u"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if said is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", said)
    assert cache_root() == Path(expected)
