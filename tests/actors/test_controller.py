"""The controller without Ray: hands that note what they are told and answer from a script."""

from collections.abc import Iterable

import pytest

from smoe.actors.controller import (
    Action,
    Attach,
    Begin,
    Controller,
    EngineDied,
    Event,
    FailRequests,
    GroupState,
    KillShards,
    Place,
    PlacementReady,
    Release,
    RestartLimits,
    ShardsDied,
    ShardsLoaded,
    StartFailed,
    StartLost,
    StartShards,
    Stop,
    decide,
)
from smoe.core.errors import CheckpointError, StartupError


class ScriptedHands:
    """Placement works; `loads` gives the outcome of each attempt to load, None for success."""

    def __init__(self, loads: Iterable[Exception | None] = ()) -> None:
        self.actions: list[Action] = []
        self._loads = list(loads)

    def perform(self, action: Action) -> Event | None:
        self.actions.append(action)
        match action:
            case Place():
                return PlacementReady()
            case StartShards(generation):
                error = self._loads.pop(0) if self._loads else None
                return ShardsLoaded(generation) if error is None else StartFailed(generation, error)  # type: ignore[arg-type]
        return None


def test_start_places_loads_and_attaches() -> None:
    hands = ScriptedHands()
    controller = Controller(hands)
    assert controller.state.phase == "new"
    assert controller.handle(Begin()) == GroupState("running", 1)
    assert hands.actions == [Place(1), StartShards(1), Attach(1)]


def test_a_load_error_fails_the_start_and_leaves_no_shard() -> None:
    error = CheckpointError("model.safetensors: truncated")
    hands = ScriptedHands([error])
    state = Controller(hands).handle(Begin())
    assert (state.phase, state.error) == ("failed", error)
    assert hands.actions == [Place(1), StartShards(1), FailRequests(error), KillShards()]


def test_no_room_fails_the_start_before_any_shard() -> None:
    error = StartupError("placement: no room")
    state, _ = decide(GroupState(), Begin())
    state, actions = decide(state, StartFailed(1, error))
    assert (state.phase, state.error, actions) == ("failed", error, (FailRequests(error), KillShards()))


def test_a_dead_shard_rebuilds_the_group_with_the_next_generation() -> None:
    hands = ScriptedHands()
    controller = Controller(hands)
    controller.handle(Begin())
    hands.actions.clear()
    state = controller.handle(ShardsDied(1, 5.0, "shard 0 ended"))
    assert state == GroupState("running", 2, (5.0,), cause="shard 0 ended")
    assert hands.actions == [KillShards(), StartShards(2), Attach(2)]


def test_what_an_older_generation_reports_changes_nothing() -> None:
    running = GroupState("running", 2, (5.0,))
    for event in (ShardsDied(1, 6.0, "late news"), ShardsLoaded(1), StartFailed(1, StartupError("late"))):
        assert decide(running, event) == (running, ())


def test_a_failed_restart_keeps_its_first_cause() -> None:
    error = CheckpointError("config.json: gone")
    controller = Controller(ScriptedHands([None, error]))
    controller.handle(Begin())
    state = controller.handle(ShardsDied(1, 5.0, "shard 0 ended"))
    assert (state.phase, state.error) == ("failed", error)
    assert controller.handle(EngineDied("afterwards")).error is error


def test_a_shard_lost_while_it_is_loaded_again_is_another_death() -> None:
    error = StartupError("shard 1 died while loading")
    state, actions = decide(GroupState("restarting", 2, (5.0,)), StartLost(2, 6.0, error))
    assert state == GroupState("restarting", 3, (5.0, 6.0), cause="shard 1 died while loading")
    assert actions == (KillShards(), StartShards(3))
    # While they are attached the phase is running already.
    assert decide(GroupState("running", 2, (5.0,)), StartLost(2, 6.0, error))[0].phase == "restarting"
    failed, _ = decide(GroupState("restarting", 2, (5.0,)), StartLost(2, 6.0, error), RestartLimits(max_deaths=1))
    assert (failed.phase, str(failed.error).split(";")[0]) == ("failed", "the shards died 2 times within 600 s")
    assert decide(state, StartLost(2, 7.0, error)) == (state, ())


def test_a_shard_lost_in_the_first_start_fails_it() -> None:
    error = StartupError("shard 1 died while loading")
    for phase in ("starting", "running"):
        state, actions = decide(GroupState(phase, 1), StartLost(1, 6.0, error))  # type: ignore[arg-type]
        assert (state.phase, state.error) == ("failed", error)
        assert actions == (FailRequests(error), KillShards())


def test_deaths_beyond_the_limit_fail_and_name_the_last_cause() -> None:
    controller = Controller(ScriptedHands(), RestartLimits(max_deaths=2, window_s=100.0))
    controller.handle(Begin())
    assert controller.handle(ShardsDied(1, 1.0, "first")).phase == "running"
    assert controller.handle(ShardsDied(2, 2.0, "second")).phase == "running"
    state = controller.handle(ShardsDied(3, 3.0, "out of memory"))
    assert state.phase == "failed"
    assert str(state.error) == "the shards died 3 times within 100 s; last cause: out of memory"


def test_deaths_long_ago_do_not_count() -> None:
    controller = Controller(ScriptedHands(), RestartLimits(max_deaths=1, window_s=100.0))
    controller.handle(Begin())
    controller.handle(ShardsDied(1, 1.0, "first"))
    state = controller.handle(ShardsDied(2, 101.0, "second"))
    assert state == GroupState("running", 3, (101.0,), cause="second")


def test_a_dead_engine_cannot_be_replayed() -> None:
    controller = Controller(ScriptedHands())
    controller.handle(Begin())
    state = controller.handle(EngineDied("exit 1"))
    assert state.phase == "failed"
    assert str(state.error) == "the engine process died: exit 1"


@pytest.mark.parametrize("phase", ["new", "starting", "running", "restarting", "failed"])
def test_stop_releases_from_every_state_and_is_final(phase: str) -> None:
    state, actions = decide(GroupState(phase, 3), Stop())  # type: ignore[arg-type]
    assert (state.phase, actions) == ("stopped", (Release(), KillShards()))
    for event in (Stop(), ShardsDied(3, 1.0, "killed"), ShardsLoaded(3), EngineDied("killed"), Begin()):
        assert decide(state, event) == (state, ())
