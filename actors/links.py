"""How the engine reaches its shards: the same call on every rank, answers in rank order."""

import contextlib
import logging
import selectors
import time
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import ray

from smoe.actors.channel import Address, Channel, connect
from smoe.actors.outcome import Failed, one_line
from smoe.core.errors import SmoeError

log = logging.getLogger(__name__)
_CLOSED_POLL_S = 1.0
ATTACH_S = 10.0


class ShardsLost(RuntimeError):
    """A shard died, or its executor raised: the group cannot go on and must be rebuilt. Says the first cause."""


class Link(Protocol):
    """Calls are made by one thread at a time."""

    def call(self, method: str, *args: Any) -> list[Any]:
        """Every rank's answer to one Executor method. Raises ShardsLost."""
        ...

    def close(self) -> None:
        """Never raises; a `call` in flight on another thread raises ShardsLost."""
        ...


@dataclass(frozen=True, slots=True)
class LinkLimits:
    """A shard is lost that has not answered for `step_s`, or `lag_s` after another: ranks work in step; or that is not
    connected within `attach_s`, when it has nothing else to do."""

    step_s: float = 600.0
    lag_s: float = 60.0
    attach_s: float = ATTACH_S


class SocketLink:
    """Messages over channels of our own; waiting costs no processor time."""

    def __init__(self, addresses: Sequence[Address], limits: LinkLimits = LinkLimits()) -> None:
        self._limits = limits
        self._closed = False
        self._channels: list[Channel] = []
        self._selector = selectors.DefaultSelector()
        try:
            for rank, address in enumerate(addresses):
                self._channels.append(connect(address, limits.step_s, handshake_s=limits.attach_s))
                self._selector.register(self._channels[-1].fileno(), selectors.EVENT_READ, rank)
        except (OSError, EOFError) as error:
            self.close()
            raise ShardsLost(f"shard {len(self._channels)} does not answer ({one_line(error)})") from error

    def call(self, method: str, *args: Any) -> list[Any]:
        for rank, channel in enumerate(self._channels):
            with _death_of(rank):
                channel.send((method, args))
        deadline = time.monotonic() + self._limits.step_s
        answers: dict[int, Any] = {}
        while len(answers) < len(self._channels):
            for rank in self._ready(deadline, answers):
                with _death_of(rank):
                    answers[rank] = self._channels[rank].receive()
                deadline = min(deadline, time.monotonic() + self._limits.lag_s)
        return checked([answers[rank] for rank in range(len(self._channels))])

    def close(self) -> None:
        self._closed = True
        for channel in self._channels:
            channel.close()
        self._selector.close()

    def _ready(self, deadline: float, answers: Container[int]) -> list[int]:
        """Ranks with something to read. Raises ShardsLost past the deadline."""
        while not self._closed:
            left = deadline - time.monotonic()
            # Short waits, since a descriptor that another thread closes leaves a selector without a word.
            try:
                ready = self._selector.select(min(max(left, 0.0), _CLOSED_POLL_S))
            except (OSError, ValueError) as error:  # closed between the look and the wait
                raise ShardsLost("the link was closed") from error
            if ready:
                return [key.data for key, _ in ready]
            if left <= 0:
                silent = next(rank for rank in range(len(self._channels)) if rank not in answers)
                waited = self._limits.lag_s if answers else self._limits.step_s
                after = "after the first of the others" if answers else "to a step"
                raise ShardsLost(f"shard {silent} hangs: no answer {after} within {waited:g} s")
        raise ShardsLost("the link was closed")


class CompiledLink:
    """Steps through a Ray compiled graph; whatever is not a step through plain calls.

    Each waiting side spins on a semaphore. That is right beside GPUs, where the cores are idle and the channel
    spans nodes without a copy through Python; beside a model that computes on these cores it would take one away.
    """

    def __init__(self, shards: Sequence[Any], limits: LinkLimits = LinkLimits()) -> None:
        from ray.dag import InputNode, MultiOutputNode

        self._shards = list(shards)
        self._limit_s = limits.step_s
        with InputNode() as plan:
            graph = MultiOutputNode([shard.run.bind("execute", plan) for shard in self._shards])
        self._graph = graph.experimental_compile()

    def call(self, method: str, *args: Any) -> list[Any]:
        try:
            if method == "execute":
                return checked([output.get(timeout=self._limit_s) for output in self._graph.execute(*args)])
            return checked(ray.get([shard.run.remote(method, *args) for shard in self._shards], timeout=self._limit_s))
        except ray.exceptions.RayError as error:
            raise ShardsLost(f"a shard died or hangs ({one_line(error)})") from error

    def close(self) -> None:
        try:
            self._graph.teardown()
        except ray.exceptions.RayError:
            log.info("the graph's actors were gone before it was taken down", exc_info=True)


@contextlib.contextmanager
def _death_of(rank: int) -> Iterator[None]:
    try:
        yield
    except (OSError, EOFError) as error:
        raise ShardsLost(f"shard {rank} died ({one_line(error)})") from error


def checked(answers: list[Any]) -> list[Any]:
    """Raises what a rank's executor raised: for the engine its devices are then lost."""
    for rank, answer in enumerate(answers):
        if isinstance(answer, Failed):
            raise ShardsLost(f"shard {rank}: {answer.error}") from _cause(answer)
    return answers


def _cause(failed: Failed) -> SmoeError:
    if failed.details:
        log.error("%s", failed.details)
    return failed.error
