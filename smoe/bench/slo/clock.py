"""Time as the client sees it; tests have one that they turn by hand."""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    def now_s(self) -> float: ...

    async def sleep_until(self, at_s: float) -> None: ...


class MonotonicClock:
    def now_s(self) -> float:
        return time.monotonic()

    async def sleep_until(self, at_s: float) -> None:
        """Returns at once, without letting others run, when it is that late already."""
        delay = at_s - time.monotonic()
        if delay > 0:
            await asyncio.sleep(delay)
