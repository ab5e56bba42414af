"""Where the replicas of a served model, and the process that deployed them, hear of each other. No Ray in here."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

LEASE_S = 5.0
"""How long a replica's question whether it shall end is held back at most; who does not ask again is gone."""

Standing = Literal["starting", "serving", "failed"]


@dataclass(frozen=True, slots=True)
class Report:
    """A replica's phase, as its AsyncEngine (smoe.server) has it; `failure` and `details` when it has failed."""

    phase: str
    failure: str = ""
    details: str = ""


@dataclass(frozen=True, slots=True)
class Board:
    """What is known of all replicas, by name; `version` grows with each change."""

    version: int
    reports: Mapping[str, Report]


class Desk:
    """All methods are for one event loop. `now` is a clock in seconds."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._reports: dict[str, Report] = {}
        self._heard_s: dict[str, float] = {}
        self._version = 0
        self._changed = asyncio.Condition()
        self._ending = asyncio.Event()

    async def report(self, replica: str, report: Report) -> None:
        self._heard_s[replica] = self._now()
        self._reports[replica] = report
        await self._tell()

    async def until_ending(self, replica: str, lease_s: float = LEASE_S) -> bool:
        """Whether the replicas are asked to end; false after `lease_s`, and then it wants to be asked again."""
        self._heard_s[replica] = self._now()
        try:
            await asyncio.wait_for(self._ending.wait(), lease_s)
        except TimeoutError:
            return False
        return True

    async def stay(self) -> None:
        """Never ends: who waits for it learns that the desk has gone."""
        await asyncio.Event().wait()

    async def end(self) -> None:
        """Asks all replicas to end."""
        self._ending.set()

    async def board(self, seen: int, timeout_s: float) -> Board:
        """As soon as its version is above `seen`; after `timeout_s` in any case. Replicas not heard of are left out."""
        async with self._changed:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait_for(lambda: self._version > seen), timeout_s)
            self._forget()
            return Board(self._version, dict(self._reports))

    async def _tell(self) -> None:
        async with self._changed:
            self._version += 1
            self._changed.notify_all()

    def _forget(self) -> None:
        for replica, heard_s in list(self._heard_s.items()):
            if self._now() - heard_s > 3 * LEASE_S:
                del self._heard_s[replica]
                self._reports.pop(replica, None)


def standing(reports: Mapping[str, Report], replicas: int, before: Standing) -> Standing:
    """Of the whole deployment. It serves once all replicas have; one that fails after that is replaced, and no end."""
    phases = [report.phase for report in reports.values()]
    if before == "failed":
        return before
    if before == "starting" and "failed" in phases:
        return "failed"
    if before == "starting" and phases.count("running") >= replicas:
        return "serving"
    return before


def all_closed(reports: Mapping[str, Report]) -> bool:
    """Whether no replica that is still there has anything to end."""
    return all(report.phase in ("closed", "failed") for report in reports.values())
