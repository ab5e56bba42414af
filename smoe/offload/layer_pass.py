"""The order in which one layer uses its experts: hits, what is under way, then misses in waves. Torch-free.

Decisions depend only on the sequence of calls, never on which transfer is faster: a computed miss is retired when
all those issued before it are, and after each retirement the misses that now get a slot are issued. So a
simulator that drives this class sees the victims that the engine sees. Only a prefetch in flight brings time in: it
cannot be evicted before it has arrived.

A pass that rolls has only a few misses in flight at a time, and computes a few experts at a time, taking in arrivals in
between. A miss then takes the slot of the least valued of all that is computed by then, and not of whatever was not
asked for when the pass began; and the link, whose next transfer waits for a part and not for all hits, hardly pauses.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from smoe.offload.cache import Residency
from smoe.offload.slots import View

ROLLING = 4
"""Enough to keep a link busy."""


class LayerPass:
    """`start`, compute `hits`, `retire_hits`; then while `unfinished`, for each arrival `arrived`, compute, `retire`.

    The views returned by `start`, `retire_hits`, `retire`, `failed` and `resume` are the transfers to begin now.
    `late` are in flight already, from now on waited for. A pass that waits for nothing has `all_hits`.
    What is computed goes through `parts`; one that `rolls` calls `resume` after each arrival.
    """

    def __init__(
        self,
        residency: Residency,
        layer: int,
        experts: Sequence[int],
        then: Callable[[], list[View]] | None = None,
        *,
        rolling: int | None = None,
    ) -> None:
        """`experts` are distinct and ascending. `then` gives transfers to begin once no miss waits for a slot.
        `rolling` >= 1 misses are awaited, and experts computed, at a time; None for as many as there are."""
        self.layer, self._rolling = layer, rolling
        self._residency, self._then = residency, then
        self.hits = residency.pin(layer, experts)
        self.late = residency.claim(layer, experts)
        known = {view.expert for view in (*self.hits, *self.late)}
        self._waiting = deque(expert for expert in experts if expert not in known)
        self._issued = deque(self.late)
        self._expected = set(self.late)
        self._forgiven = set(self.late)
        self._computed: set[View] = set()
        self._pinned = set(self.hits)
        self.all_hits = not self.unfinished

    @property
    def unfinished(self) -> bool:
        return bool(self._waiting or self._issued)

    def start(self) -> list[View]:
        """Transfers that can begin beside the hits, before any slot is given back."""
        return self._issue()

    @property
    def rolls(self) -> bool:
        return self._rolling is not None

    def parts(self, views: Sequence[View]) -> list[Sequence[View]]:
        """`views`, at least one part, each computed together: all, unless misses wait for slots and the pass rolls."""
        if self._rolling is None or not self._waiting or not views:
            return [views]
        return [views[start : start + self._rolling] for start in range(0, len(views), self._rolling)]

    def retire_hits(self, part: Sequence[View] | None = None) -> list[View]:
        """The hits, or a part of them, are computed: gives these all back before a victim is chosen among them."""
        for view in self.hits if part is None else part:
            self._unpin(view)
        return self._issue()

    def awaits(self, view: View) -> bool:
        """Whether an arrival is one of this pass."""
        return view in self._expected

    @property
    def awaited(self) -> int:
        """Views of this pass that are under way."""
        return len(self._expected)

    def arrived(self, view: View) -> None:
        """The bytes of an issued view are in its slot; it is pinned now."""
        self._residency.commit(view)
        self._expected.remove(view)
        self._pinned.add(view)

    def forgives(self, view: View) -> bool:
        """Whether the failed transfer of `view` was begun before this pass asked: it is tried again by `failed`."""
        return view in self._forgiven

    def failed(self, view: View) -> list[View]:
        """The prefetch that this pass waited for has failed; its expert is a miss like another."""
        self._forgiven.remove(view)
        self._issued.remove(view)
        self._expected.remove(view)
        self._residency.fail(view)
        self._waiting.appendleft(view.expert)
        return self._issue()

    def retire(self, views: Iterable[View]) -> list[View]:
        """`views`, arrived before, are computed: gives back those that all earlier ones have been given back before."""
        self._computed.update(views)
        begin: list[View] = []
        while self._issued and self._issued[0] in self._computed:
            view = self._issued.popleft()
            self._computed.remove(view)
            self._unpin(view)
            begin += self._issue()
        return begin

    def resume(self) -> list[View]:
        """A slot that was in flight for somebody else may be had now, or one more miss awaited."""
        return self._issue()

    def skip(self) -> list[View]:
        """Nothing is in flight, and yet the policy refuses the next miss a slot: it is computed without one.

        Only policies that know the future do that, so only simulations call this.
        """
        self._waiting.popleft()
        return self._issue()

    def abandon(self) -> list[View]:
        """Ends the pass early, when no transfer of it is under way.

        Issued views that have not arrived lose their slots, and are returned.
        """
        lost = [view for view in self._issued if view in self._expected]
        for view in lost:
            self._residency.fail(view)
        for view in list(self._pinned):
            self._unpin(view)
        self._waiting.clear()
        self._issued.clear()
        self._expected.clear()
        self._computed.clear()
        self._then = None
        return lost

    def _unpin(self, view: View) -> None:
        self._pinned.remove(view)
        self._residency.unpin(view)

    def _issue(self) -> list[View]:
        begin: list[View] = []
        while self._waiting:
            if self._rolling is not None and len(self._expected) >= self._rolling:
                return begin
            view = self._residency.try_reserve(self.layer, self._waiting[0])
            if view is None:
                return begin
            self._waiting.popleft()
            self._issued.append(view)
            self._expected.add(view)
            begin.append(view)
        if self._then is not None:
            then, self._then = self._then, None
            begin += then()
        return begin
