"""Transfers that a draft's routing asks for, between the forwards of the model. Torch-free.

Only the newest plan counts: what an earlier one asked for, and this one does not, is taken back if it has not begun.
No more than a bounded number is in flight at a time, so that slots are not emptied long before their bytes can come;
the rest follows as transfers arrive, also during the forward, for layers that are still to come.
"""

from collections.abc import Sequence
from typing import Literal

from smoe.offload.cache import Residency
from smoe.offload.policies.protocols import Key, Reason
from smoe.offload.slots import View

PlanOrder = Literal["deadline", "submitted", "named"]
"""Which planned transfer goes first: that of the layer whose turn comes first; of an earlier plan before a later one,
in each the first layer first, as Specter does; or as the plan names them."""


class Drafted:
    def __init__(
        self,
        residency: Residency,
        layers: Sequence[int],
        *,
        order: PlanOrder,
        max_in_flight: int | None,
    ) -> None:
        """`max_in_flight` >= 1; by default half of all slots."""
        self.order = order
        self.submitted = 0
        self._residency, self._fixed = residency, max_in_flight
        self._place = {layer: place for place, layer in enumerate(layers)}
        self._plan: dict[Key, None] = {}
        self._waiting: list[Key] = []
        self._waited: set[Key] = set()
        self._ours: set[Key] = set()

    @property
    def waits(self) -> bool:
        """Whether something planned has no slot yet."""
        return bool(self._waiting)

    @property
    def in_flight(self) -> int:
        """Planned transfers under way that no pass waits for."""
        self._ours &= self._residency.background_keys
        return len(self._ours)

    def is_ours(self, key: Key) -> bool:
        """Of something in flight in the background: whether a plan of a draft began it."""
        return key in self._ours

    def replace(self, keys: Sequence[Key]) -> list[View]:
        """`keys`, distinct, are the newest plan. Returns what of earlier ones is in flight and not in it."""
        named = keys if self.order == "named" else sorted(keys, key=lambda key: self._place[key[0]])
        self._plan = dict.fromkeys(named)
        self._waited, self._waiting = set(self._waiting), []
        if not self.in_flight:
            return []
        return [view for view in self._residency.background() if view[:2] in self._ours and view[:2] not in self._plan]

    def start(self) -> list[View]:
        """Marks as used what has a slot; transfers to begin now. Raises `submitted` by what is new to them."""
        self._residency.confirm(list(self._plan))
        self._waiting = [key for key in self._plan if not self._residency.holds(key)]
        self.submitted += sum(key not in self._waited for key in self._waiting)
        return self.more()

    def more(self) -> list[View]:
        """Transfers to begin now, since there is room again."""
        if not self._waiting:
            return []
        residency, begin, kept = self._residency, list[View](), list[Key]()
        room = self._most - self.in_flight
        for key in self._waiting:
            if residency.holds(key):
                continue
            view = residency.try_reserve(*key, Reason.PREFETCH, spared=self._plan) if room > 0 else None
            if view is None:
                kept.append(key)
            else:
                self._ours.add(key)
                begin.append(view)
                room -= 1
        self._waiting = kept
        return begin

    def passing(self, layer: int) -> None:
        """The pass of `layer` has begun: it is too late for what waits for it and for layers before it."""
        if self._waiting:
            place = self._place[layer]
            self._waiting = [key for key in self._waiting if self._place[key[0]] > place]

    @property
    def _most(self) -> int:
        return max(1, self._residency.num_slots // 2) if self._fixed is None else self._fixed
