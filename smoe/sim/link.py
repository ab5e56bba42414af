"""A link in virtual time: one transfer at a time, those that a pass waits for before the others."""

from collections import deque
from collections.abc import Iterable

from smoe.offload.cache import View


class Link:
    """Transfers of one size. Started ones run to their end; of those that wait, the urgent ones start first, each kind
    in the order of `begin`. At equal times an arrival comes before a start, so a free link takes what is begun last.
    """

    def __init__(self, transfer_s: float) -> None:
        self.busy_s = 0.0
        self.transfer_s = transfer_s
        self._urgent: deque[View] = deque()
        self._background: deque[View] = deque()
        self._running: View | None = None
        self._ends = 0.0

    @property
    def busy(self) -> bool:
        return self._running is not None

    def begin(self, view: View, now: float, *, background: bool) -> None:
        """`now` never goes back, and all that ended before it has been taken."""
        (self._background if background else self._urgent).append(view)
        if self._running is None:
            self._start(now)

    def hurry(self, views: Iterable[View]) -> None:
        """A pass waits for these background transfers now."""
        for view in views:
            if view in self._background:
                self._background.remove(view)
                self._urgent.append(view)

    def try_cancel(self, view: View) -> bool:
        """Whether the background transfer had not started; then it is forgotten."""
        if view not in self._background:
            return False
        self._background.remove(view)
        return True

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
        queue = self._urgent or self._background
        if not queue:
            self._running = None
            return
        self._running, self._ends = queue.popleft(), at + self.transfer_s
        self.busy_s += self.transfer_s
