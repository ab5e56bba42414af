"""The order in which one layer uses its experts: hits, what is under way, then misses in waves. Torch-free.

Decisions depend only on the sequence of calls, never on which transfer is faster: a computed miss is retired when
all those issued before it are, and after each retirement the misses that now get a slot are issued. So a
simulator that drives this class sees the victims that the engine sees. Only a prefetch in flight brings time in: it
cannot be evicted before it has arrived.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from smoe.offload.cache import Residency, View


class LayerPass:
    """`start`, compute `hits`, `retire_hits`; then while `unfinished`, for each arrival `arrived`, compute, `retire`.

    The views returned by `start`, `retire_hits`, `retire`, `failed` and `resume` are the transfers to begin now.
    `late` are in flight already, from now on waited for. A pass that waits for nothing has `all_hits`.
    """

    def __init__(
        self, residency: Residency, layer: int, experts: Sequence[int], then: Callable[[], list[View]] | None = None
    ) -> None:
        """`experts` are distinct and ascending. `then` gives transfers to begin once no miss waits for a slot."""
        self.layer = layer
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

    def retire_hits(self) -> list[View]:
        """The hits are computed: gives them all back before a victim is chosen among them."""
        for view in self.hits:
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
        """A slot that was in flight for somebody else may be had now."""
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
