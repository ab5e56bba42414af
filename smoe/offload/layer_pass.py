"""The order in which one layer uses its experts: hits, then misses in waves. Torch-free.

Decisions depend only on the sequence of calls, never on which transfer is faster: a computed miss is retired when
all those issued before it are, and after each retirement the misses that now get a slot are issued. So a
simulator that drives this class sees the victims that the engine sees.
"""

from collections import deque
from collections.abc import Iterable, Sequence

from smoe.offload.cache import Residency, View


class LayerPass:
    """`start`, compute `hits`, `retire_hits`; then while `unfinished`, for each arrival `arrived`, compute, `retire`.

    The views returned by `start`, `retire_hits` and `retire` are the transfers to begin now.
    """

    def __init__(self, residency: Residency, layer: int, experts: Sequence[int]) -> None:
        """`experts` are distinct and ascending."""
        self._residency, self._layer = residency, layer
        self.hits = residency.hit(layer, experts)
        resident = {view.expert for view in self.hits}
        self._waiting = deque(expert for expert in experts if expert not in resident)
        self._issued: deque[View] = deque()
        self._computed: set[View] = set()
        self._pinned = set(self.hits)

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

    def arrived(self, view: View) -> None:
        """The bytes of an issued view are in its slot; it is pinned now."""
        self._residency.commit(view)
        self._pinned.add(view)

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

    def abandon(self) -> list[View]:
        """Ends the pass early, when no transfer of it is under way.

        Issued views that have not arrived lose their slots, and are returned.
        """
        lost = [view for view in self._issued if view not in self._pinned]
        for view in lost:
            self._residency.fail(view)
        for view in list(self._pinned):
            self._unpin(view)
        self._waiting.clear()
        self._issued.clear()
        self._computed.clear()
        return lost

    def _unpin(self, view: View) -> None:
        self._pinned.remove(view)
        self._residency.unpin(view)

    def _issue(self) -> list[View]:
        begin: list[View] = []
        while self._waiting:
            view = self._residency.try_reserve(self._layer, self._waiting[0])
            if view is None:
                break
            self._waiting.popleft()
            self._issued.append(view)
            begin.append(view)
        return begin
