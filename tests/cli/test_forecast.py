"""The decode speed that `smoe plan` predicts."""

from types import SimpleNamespace
from typing import Any

import pytest

from smoe.cli import forecast as module
from smoe.cli.forecast import forecast
from smoe.core.config import EngineConfig
from smoe.core.draft import DraftConfig
from smoe.engine.plan import plan_memory
from smoe.models.loading import open_checkpoint


@pytest.fixture(autouse=True)
def _steady_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smoe.bench.bandwidth.read_bandwidth", lambda *_: [1e10])
    monkeypatch.setattr("smoe.bench.bandwidth.copy_bandwidth", lambda *_: [1e8])


@pytest.fixture
def _steady_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smoe.bench.offload.link.Link", lambda *_, **__: SimpleNamespace(typical=1e7))


def found(**config: Any) -> module.Forecast | None:
    checkpoint = open_checkpoint("builtin")
    return forecast(checkpoint, plan_memory(checkpoint, EngineConfig(**config)))


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


def test_experts_in_host_memory_come_at_the_speed_of_a_copy() -> None:
    predicted = found(expert_memory="25%", expert_tier="host")
    assert predicted is not None
    assert predicted.simulated is not None
    assert predicted.simulated.link_bytes_per_s == pytest.approx(1e8)
    assert predicted.simulated.disk_bytes is None
    assert predicted.tokens_per_s == pytest.approx(1e8 / predicted.simulated.moved_bytes, rel=0.2)


@pytest.mark.usefixtures("_steady_disk")
def test_stacked_tiers_are_between_disk_and_host_and_better_the_more_host_memory_keeps() -> None:
    tiers = ("disk", "host:8MB", "host:16MB", "host")
    predicted = [found(expert_memory="5%", expert_tier=tier) for tier in tiers]
    assert all(each is not None for each in predicted)
    rates = [each.tokens_per_s for each in predicted if each is not None]
    # Where host memory keeps little it only adds a copy to every read.
    assert rates[1] < rates[2] < rates[3]
    assert rates[0] == pytest.approx(rates[1], rel=0.5)
    stacked = predicted[2]
    assert stacked is not None
    assert stacked.simulated is not None
    disk = stacked.simulated.disk_bytes
    assert disk is not None
    assert 0 < disk < stacked.simulated.moved_bytes
    assert stacked.simulated.disk_bytes_per_s == pytest.approx(1 / (1 / 1e7 + 1 / 1e8))
    assert stacked.tokens_per_s == pytest.approx(1 / stacked.simulated.bound_s, rel=0.2)
    assert "from the disk" in stacked.lines()


@pytest.mark.usefixtures("_steady_disk")
def test_an_emulated_link_from_host_memory_is_no_faster_than_what_it_stands_for() -> None:
    slow = found(expert_memory="5%", expert_tier="host:8MB", expert_link="1MB/s")
    fast = found(expert_memory="5%", expert_tier="host:8MB", expert_link="1GB/s")
    assert slow is not None
    assert fast is not None
    assert slow.simulated is not None
    assert fast.simulated is not None
    assert slow.simulated.disk_bytes_per_s == slow.simulated.link_bytes_per_s == pytest.approx(1e6)
    assert fast.simulated.link_bytes_per_s == pytest.approx(1e8)


def test_what_is_computed_in_place_is_not_waited_for() -> None:
    policies = [f"evict=lru,miss={miss}" for miss in ("wait", "auto", "compute")]
    waits, auto, computes = (
        found(expert_memory="25%", expert_tier="host", expert_policy=policy) for policy in policies
    )
    assert waits is not None
    assert auto is not None
    assert computes is not None
    assert waits.simulated is not None
    assert waits.simulated.in_place == 0
    # Reading a weight in place is a hundred times as fast as copying it here.
    assert auto.tokens_per_s > 5 * waits.tokens_per_s
    assert computes.tokens_per_s > 5 * waits.tokens_per_s
    assert "computed where they are" in auto.lines()


@pytest.mark.usefixtures("_steady_disk")
def test_residuals_are_fewer_bytes_over_the_same_disk() -> None:
    whole, part = (
        found(expert_memory="60%", draft=DraftConfig(model="int4", residual=residual)) for residual in (False, True)
    )
    assert whole is not None
    assert part is not None
    assert whole.simulated is not None
    assert part.simulated is not None
    assert 0.5 < part.simulated.moved_bytes / whole.simulated.moved_bytes < 0.6
    assert part.simulated.link_bytes_per_s == whole.simulated.link_bytes_per_s
    assert part.tokens_per_s == pytest.approx(1e7 / part.simulated.moved_bytes, rel=0.1)
