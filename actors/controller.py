"""The life of a group of shards, decided without Ray: what happened goes in, what to do next comes out.

    starting --ShardsLoaded--> running --ShardsDied--> restarting --ShardsLoaded--> running
        |                         |                        |  +--StartLost--> restarting
        +--StartFailed--> failed <+--EngineDied, or too many deaths, or StartFailed

Everything or nothing: no state has some shards of a group running. Each attempt has a generation; what an older
generation reports is stale and changes nothing.
"""

from dataclasses import dataclass, replace
from typing import Literal, Protocol

from smoe.core.errors import SmoeError, StartupError

Phase = Literal["new", "starting", "running", "restarting", "failed", "stopped"]


@dataclass(frozen=True, slots=True)
class GroupState:
    """`deaths` are the times of recent shard losses, and `cause` that of the last one; `error` is the first cause once
    the phase is `failed`."""

    phase: Phase = "new"
    generation: int = 0
    deaths: tuple[float, ...] = ()
    error: SmoeError | None = None
    cause: str = ""


@dataclass(frozen=True, slots=True)
class RestartLimits:
    """More than `max_deaths` within `window_s` is a fault that restarting does not mend."""

    max_deaths: int = 3
    window_s: float = 600.0


# Events: what happened. ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Begin:
    pass


@dataclass(frozen=True, slots=True)
class PlacementReady:
    pass


@dataclass(frozen=True, slots=True)
class ShardsLoaded:
    generation: int


@dataclass(frozen=True, slots=True)
class StartFailed:
    """Placement timed out, a shard failed to load, or the engine refused what it was given."""

    generation: int
    error: SmoeError


@dataclass(frozen=True, slots=True)
class StartLost:
    """A shard died, or fell silent, while it was loaded or attached: what may not happen again."""

    generation: int
    at_s: float
    error: SmoeError


@dataclass(frozen=True, slots=True)
class ShardsDied:
    generation: int
    at_s: float
    cause: str


@dataclass(frozen=True, slots=True)
class EngineDied:
    cause: str


@dataclass(frozen=True, slots=True)
class Stop:
    pass


Event = Begin | PlacementReady | ShardsLoaded | StartFailed | StartLost | ShardsDied | EngineDied | Stop


# Actions: what to do next. ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Place:
    """Reserve room for all shards. Answers with PlacementReady or StartFailed."""

    generation: int


@dataclass(frozen=True, slots=True)
class StartShards:
    """Start and load every shard. Answers with ShardsLoaded or StartFailed."""

    generation: int


@dataclass(frozen=True, slots=True)
class Attach:
    """Give the loaded shards to the engine, which prefills again what was in flight."""

    generation: int


@dataclass(frozen=True, slots=True)
class KillShards:
    pass


@dataclass(frozen=True, slots=True)
class FailRequests:
    """End everything in flight with `error`, and refuse what comes."""

    error: SmoeError


@dataclass(frozen=True, slots=True)
class Release:
    """Stop the engine and give the reserved room back."""


Action = Place | StartShards | Attach | KillShards | FailRequests | Release


def decide(
    state: GroupState, event: Event, limits: RestartLimits = RestartLimits()
) -> tuple[GroupState, tuple[Action, ...]]:
    """The next state, and the actions that lead there, in order. Pure."""
    if state.phase == "stopped":
        return state, ()
    match event:
        case Stop():
            return replace(state, phase="stopped"), (Release(), KillShards())
        case Begin() if state.phase == "new":
            return replace(state, phase="starting", generation=1), (Place(1),)
        case PlacementReady() if state.phase == "starting":
            return state, (StartShards(state.generation),)
        case ShardsLoaded(generation) if generation == state.generation and state.phase in ("starting", "restarting"):
            return replace(state, phase="running"), (Attach(generation),)
        case StartFailed(generation, error) if generation == state.generation and state.phase != "failed":
            return _fail(state, error)
        case StartLost(generation, at_s, error) if generation == state.generation and state.phase != "failed":
            # The first time nobody knows yet that it can be loaded at all.
            return _fail(state, error) if generation == 1 else _restart(state, at_s, str(error), limits)
        case ShardsDied(generation, at_s, cause) if generation == state.generation and state.phase == "running":
            return _restart(state, at_s, cause, limits)
        case EngineDied(cause) if state.phase != "failed":
            return _fail(state, StartupError(f"the engine process died: {cause}"))
        case _:
            return state, ()


def _restart(
    state: GroupState, at_s: float, cause: str, limits: RestartLimits
) -> tuple[GroupState, tuple[Action, ...]]:
    deaths = (*(death for death in state.deaths if at_s - death < limits.window_s), at_s)
    if len(deaths) > limits.max_deaths:
        times = f"{len(deaths)} times within {limits.window_s:g} s"
        return _fail(replace(state, deaths=deaths), StartupError(f"the shards died {times}; last cause: {cause}"))
    generation = state.generation + 1
    restarting = replace(state, phase="restarting", generation=generation, deaths=deaths, cause=cause)
    return restarting, (KillShards(), StartShards(generation))


def _fail(state: GroupState, error: SmoeError) -> tuple[GroupState, tuple[Action, ...]]:
    return replace(state, phase="failed", error=error), (FailRequests(error), KillShards())


class Hands(Protocol):
    """Carries out actions. `perform` may take minutes; it returns the event that the action ends with, if any."""

    def perform(self, action: Action) -> Event | None: ...


class Controller:
    """Feeds events to `decide` and the decisions to the hands, one at a time; not thread-safe."""

    def __init__(self, hands: Hands, limits: RestartLimits = RestartLimits()) -> None:
        self._hands = hands
        self._limits = limits
        self.state = GroupState()

    def handle(self, event: Event) -> GroupState:
        """Acts on the event and on all that follows from it; returns the state reached."""
        events: list[Event] = [event]
        while events:
            self.state, actions = decide(self.state, events.pop(0), self._limits)
            for action in actions:
                answer = self._hands.perform(action)
                if answer is not None:
                    events.append(answer)
        return self.state
