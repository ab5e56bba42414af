"""Many independent calculations, over the cores of this machine or a Ray cluster."""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import ray

from smoe.actors.launch import open_ray
from smoe.core.errors import CapacityError, SmoeError

Item = TypeVar("Item")
Common = TypeVar("Common")
Answer = TypeVar("Answer")


def fan_out(
    function: Callable[[Item, Common], Answer],
    items: Sequence[Item],
    common: Common,
    *,
    jobs: int | None,
    memory_bytes: int = 0,
) -> Iterator[tuple[int, Answer]]:
    """(index, function(items[index], common)) in the order in which they end, at most `jobs` at a time; None: as many
    as this machine, or the cluster, has CPUs.

    `function` is importable by name; `common` is sent once, an item when its turn comes. A task has one CPU and
    reserves `memory_bytes`. Raises StartupError, CapacityError where no node has that memory, and what `function`
    raises first; a process that dies is tried again elsewhere. Leaving the iterator early ends what runs.
    """
    session = open_ray(jobs or os.cpu_count() or 1)
    running: dict[Any, int] = {}
    try:
        _check_memory(memory_bytes)
        jobs = jobs or max(1, int(ray.cluster_resources().get("CPU", 1)))
        shared, remote = ray.put(common), ray.remote(num_cpus=1, memory=memory_bytes or None)(_call)
        waiting = iter(enumerate(items))
        while True:
            while len(running) < jobs and (following := next(waiting, None)) is not None:
                running[remote.remote(function, following[1], shared)] = following[0]
            if not running:
                return
            [ended], _ = ray.wait(list(running), num_returns=1)
            index, answer = running.pop(ended), ray.get(ended)
            if isinstance(answer, SmoeError):
                raise answer
            yield index, answer
    finally:
        for task in running:
            with contextlib.suppress(ray.exceptions.RayError):
                ray.cancel(task, force=True)
        session.close()


def _check_memory(memory_bytes: int) -> None:
    """A task that no node can hold would wait for ever."""
    largest = max((int(node["Resources"].get("memory", 0)) for node in ray.nodes() if node["Alive"]), default=0)
    if memory_bytes > largest:
        raise CapacityError(f"memory: a task takes up to {memory_bytes:,} bytes (the largest node has {largest:,})")


def _call(function: Callable[[Any, Any], Any], item: Any, common: Any) -> Any:
    """Errors for the user travel as answers; Ray would wrap them."""
    try:
        return function(item, common)
    except SmoeError as error:
        return error
