"""How the engine reaches its shards: the same call on every rank, answers in rank order."""

import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import ray

from smoe.actors.channel import Address, Channel, connect
from smoe.actors.outcome import Failed, one_line
from smoe.core.errors import SmoeError

log = logging.getLogger(__name__)


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


class SocketLink:
    """Messages over channels of our own; waiting costs no processor time."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        self._channels: list[Channel] = []
        try:
            for address in addresses:
                self._channels.append(connect(address))
        except (OSError, EOFError) as error:
            self.close()
            raise ShardsLost(f"shard {len(self._channels)} does not answer ({one_line(error)})") from error

    def call(self, method: str, *args: Any) -> list[Any]:
        for rank, channel in enumerate(self._channels):
            with _death_of(rank):
                channel.send((method, args))
        answers = []
        for rank, channel in enumerate(self._channels):
            with _death_of(rank):
                answers.append(channel.receive())
        return checked(answers)

    def close(self) -> None:
        for channel in self._channels:
            channel.close()


class CompiledLink:
    """Steps through a Ray compiled graph; whatever is not a step through plain calls.

    Each waiting side spins on a semaphore. That is right beside GPUs, where the cores are idle and the channel
    spans nodes without a copy through Python; beside a model that computes on these cores it would take one away.
    """

    def __init__(self, shards: Sequence[Any]) -> None:
        from ray.dag import InputNode, MultiOutputNode

        self._shards = list(shards)
        with InputNode() as plan:
            graph = MultiOutputNode([shard.run.bind("execute", plan) for shard in self._shards])
        self._graph = graph.experimental_compile()

    def call(self, method: str, *args: Any) -> list[Any]:
        try:
            if method == "execute":
                return checked([output.get(timeout=-1) for output in self._graph.execute(*args)])
            return checked(ray.get([shard.run.remote(method, *args) for shard in self._shards]))
        except ray.exceptions.RayError as error:
            raise ShardsLost(f"a shard died ({one_line(error)})") from error

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
