"""A link in virtual time: one transfer at a time, earliest deadline first."""

import heapq
import itertools
from collections.abc import Iterable

from smoe.offload.slots import View


class Link:
    """Transfers of one size, `transfer_s` each. Started ones run to their end; of those that wait, the earliest
    deadline starts first, of equal ones the first begun; 0 is before all others: a pass waits. At equal times an
    arrival comes before a start, so a free link takes what is begun last.
    """

    def __init__(self, transfer_s: float) -> None:
        self.busy_s = 0.0
        self.transfer_s = transfer_s
        self._queue: list[tuple[int, int, View]] = []
        self._order = itertools.count()
        self._running: View | None = None
        self._ends = 0.0

    @property
    def busy(self) -> bool:
        return self._running is not None

    def begin(self, view: View, now: float, *, deadline: int = 0) -> None:
        """`now` never goes back, and all that ended before it has been taken."""
        heapq.heappush(self._queue, (deadline, next(self._order), view))
        if self._running is None:
            self._start(now)

    def hurry(self, views: Iterable[View]) -> None:
        """A pass waits for these background transfers now."""
        for view in views:
            if self._take_out(view):
                heapq.heappush(self._queue, (0, next(self._order), view))

    def try_cancel(self, view: View) -> bool:
        """Whether the background transfer had not started; then it is forgotten."""
        return self._take_out(view)

    def arrivals(self, now: float) -> list[View]:
        """What has ended up to `now`, in order, each once."""
        ended: list[View] = []
        while self._running is not None and self._ends <= now:
            ended.append(self._running)
            self._start(self._ends)
        return ended

    def next_arrival_s(self) -> float:
        """When the running transfer ends; there must be one."""
        assert self._running is not None
        return self._ends

    def _start(self, at: float) -> None:
        if not self._queue:
            self._running = None
            return
        self._running = heapq.heappop(self._queue)[2]
        took = self._carry_s(self._running)
        self._ends = at + took
        self.busy_s += took

    def _carry_s(self, view: View) -> float:
        """What this transfer takes, which starts now."""
        return self.transfer_s

    def _take_out(self, view: View) -> bool:
        """Of the background; there are never many."""
        for place, (deadline, _, queued) in enumerate(self._queue):
            if deadline and queued == view:
                del self._queue[place]
                heapq.heapify(self._queue)
                return True
        return False
