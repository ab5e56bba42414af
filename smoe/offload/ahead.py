"""What is brought in before a pass waits for it: prefetches, which pause where they do not pay, and admissions.
Torch-free."""

from collections.abc import Sequence

from smoe.offload.cache import Residency
from smoe.offload.drafted import Drafted
from smoe.offload.policies.protocols import Array, Key, Prefetch, Reason, Routing
from smoe.offload.slots import View

PAUSE_SHARE = 0.6  # of prefetches that end unused; what a live engine pauses at
PAUSE_EPOCHS = 256


class Ahead:
    def __init__(
        self,
        residency: Residency,
        prefetch: Prefetch | None,
        layers: Sequence[int],
        drafted: Drafted,
        *,
        max_background: int | None,
        pause_share: float | None,
        pause_window: int,
    ) -> None:
        """Parameters are the Planner's."""
        self.pauses = 0
        self._residency, self._prefetch, self._fixed = residency, prefetch, max_background
        self._drafted = drafted
        self._next_layer = dict(zip(layers, [*layers[1:], layers[0]], strict=True))
        self._last_layer = layers[-1]
        self._pause_share, self._pause_window = pause_share, pause_window
        self._judged = dict.fromkeys(layers, (0, 0))
        self._paused_until: dict[int, int] = {}
        self._epoch = 0

    def begin_forward(self) -> None:
        self._epoch += 1
        if self._prefetch is not None and self._pause_share is not None:
            self._judge(self._pause_share)

    def wants_lookahead(self, layer: int) -> bool:
        return (
            self._prefetch is not None
            and self._prefetch.needs_lookahead
            and layer != self._last_layer
            and self._next_layer[layer] not in self._paused_until
        )

    def begin(self, routing: Routing, lookahead: Array | None, to_admit: dict[Key, None]) -> list[View]:
        """Transfers for later, once no miss of the pass waits for a slot; what of `to_admit` got one leaves it."""
        residency = self._residency
        begin = self._drafted.more()
        planned = len(begin)
        room = planned + self._max_background - residency.background_in_flight + self._drafted.in_flight
        for key in self._plan(routing, lookahead):
            if len(begin) >= room:
                break
            if not residency.holds(key):
                view = residency.try_reserve(*key, Reason.PREFETCH)
                if view is not None:
                    begin.append(view)
        for key in list(to_admit):
            if residency.holds(key):
                del to_admit[key]
            elif len(begin) < room:
                view = residency.try_reserve(*key, Reason.ADMISSION)
                if view is not None:
                    del to_admit[key]
                    begin.append(view)
        return begin

    @property
    def _max_background(self) -> int:
        """A layer's share of the slots there are now, unless told."""
        if self._fixed is not None:
            return self._fixed
        return max(1, self._residency.num_slots // len(self._next_layer))

    def _plan(self, routing: Routing, lookahead: Array | None) -> Sequence[Key]:
        next_layer, paused = self._next_layer[routing.layer], self._paused_until
        if self._prefetch is None or next_layer in paused:
            return ()
        keys = self._prefetch.plan(routing, next_layer, lookahead)
        if paused:
            keys = [key for key in keys if key[0] not in paused]
        self._residency.confirm(keys)
        return keys

    def _judge(self, pause_share: float) -> None:
        for layer, until in list(self._paused_until.items()):
            if until <= self._epoch:
                del self._paused_until[layer]
        for layer, (paid, wasted) in self._residency.uses.prefetch_paid.items():
            paid_before, wasted_before = self._judged[layer]
            ended = paid + wasted - paid_before - wasted_before
            if ended >= self._pause_window:
                if wasted - wasted_before > pause_share * ended:
                    self._paused_until[layer] = self._epoch + PAUSE_EPOCHS
                    self.pauses += 1
                self._judged[layer] = (paid, wasted)
