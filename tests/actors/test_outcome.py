import pickle

import pytest

from smoe.actors.outcome import Failed, attempt, one_line, unwrap
from smoe.core.errors import ConfigError, StartupError


def raiser(error: Exception) -> None:
    raise error


def test_a_value_passes_through() -> None:
    assert unwrap(attempt(lambda: 3)) == 3


def test_our_errors_come_back_as_themselves_after_a_process_boundary() -> None:
    failed = pickle.loads(pickle.dumps(attempt(lambda: raiser(ConfigError("dtype", "int3", "one of these")))))
    with pytest.raises(ConfigError, match=r"^dtype: 'int3' \(one of these\)$"):
        unwrap(failed)


def test_an_unexpected_error_becomes_one_line_and_keeps_its_traceback() -> None:
    failed = attempt(lambda: raiser(KeyError("layers.0")))
    assert isinstance(failed, Failed)
    assert "raiser" in failed.details
    with pytest.raises(StartupError, match=r"^KeyError: 'layers.0'$"):
        unwrap(failed)


def test_only_the_first_line_of_a_message_is_shown() -> None:
    assert one_line(ValueError("one\ntwo")) == "ValueError: one"
    assert one_line(ValueError()) == "ValueError"
