"""The decode speed that `smoe plan` predicts."""

import pytest

from smoe.cli import forecast as module
from smoe.cli.forecast import forecast
from smoe.core.config import EngineConfig
from smoe.engine.plan import plan_memory
from smoe.models.loading import open_checkpoint


@pytest.fixture(autouse=True)
def _steady_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smoe.bench.bandwidth.read_bandwidth", lambda *_: [1e10])


def found(**config: str | None) -> module.Forecast | None:
    checkpoint = open_checkpoint("builtin")
    return forecast(checkpoint, plan_memory(checkpoint, EngineConfig(**config)))  # type: ignore[arg-type]


def test_resident_weights_are_read_once_a_token() -> None:
    predicted = found()
    assert predicted is not None
    assert predicted.simulated is None
    assert predicted.tokens_per_s > 500
    assert "bound by memory" in predicted.lines()


def test_a_declared_link_is_simulated_and_called_declared() -> None:
    slow = found(expert_memory="25%", expert_link="10MB/s")
    fast = found(expert_memory="25%", expert_link="100MB/s")
    assert slow is not None
    assert fast is not None
    assert slow.simulated is not None
    assert slow.simulated.same_geometry
    assert slow.tokens_per_s == pytest.approx(1e7 / slow.simulated.moved_bytes, rel=0.1)
    assert fast.tokens_per_s > 5 * slow.tokens_per_s
    assert "(declared)" in slow.lines()


def test_files_that_cannot_be_read_directly_give_no_forecast(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("no direct reads here")

    monkeypatch.setattr("smoe.bench.offload.link.Link", refuse)
    assert found(expert_memory="25%") is None
