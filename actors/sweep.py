"""Many independent calculations, over the cores of this machine or a Ray cluster."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import ray

from smoe.actors.launch import open_ray
from smoe.core.errors import SmoeError

Item = TypeVar("Item")
Common = TypeVar("Common")
Answer = TypeVar("Answer")


def fan_out(
    function: Callable[[Item, Common], Answer], items: Sequence[Item], common: Common, *, jobs: int
) -> Iterator[tuple[int, Answer]]:
    """(index, function(items[index], common)) in the order in which they end, at most `jobs` at a time.

    `function` is importable by name; `common` is sent once. Raises StartupError, and what `function` raises first; a
    process that dies is tried again elsewhere. Leaving the iterator early ends what runs.
    """
    session = open_ray(jobs)
    running: dict[Any, int] = {}
    try:
        shared, remote = ray.put(common), ray.remote(num_cpus=1)(_call)
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


def _call(function: Callable[[Any, Any], Any], item: Any, common: Any) -> Any:
    """Errors for the user travel as answers; Ray would wrap them."""
    try:
        return function(item, common)
    except SmoeError as error:
        return error
