"""Whole passes in one call, for simulations in which transfers take no time. Torch-free."""

from collections import deque
from collections.abc import Callable, Sequence

from smoe.offload.cache import Residency, View
from smoe.offload.policies.protocols import Reason


class ResidencyAtOnce(Residency):
    """A Residency that can also serve a pass without its steps, which are most of a simulation's time."""

    def serve(self, layer: int, experts: Sequence[int], then: Callable[[], list[View]]) -> int:
        """What a LayerPass over distinct, ascending `experts` comes to when transfers take no time: the same counts,
        calls of the policy and victims, without a view of each. `then` as there; what it begins has arrived at the end.
        Returns how many experts were brought in. Nothing may be in flight or pinned.
        """
        waiting = deque(self.ask(layer, experts))
        misses = len(waiting)
        ahead: list[View] | None = None
        slot_of, pins = self._slot_of[layer], self._pins
        hits = [slot_of[expert] for expert in experts if expert in slot_of]
        for slot in hits:
            pins[slot] = 1
        issued = self._serve_some(layer, waiting)
        if not waiting:
            ahead = then()
        for slot in hits:
            pins[slot] = 0
        if waiting:
            issued += self._serve_some(layer, waiting)
        while issued or waiting:
            if not waiting and ahead is None:
                ahead = then()
            if not issued:  # the policy refuses a slot: computed without one
                waiting.popleft()
                issued = self._serve_some(layer, waiting)
                continue
            arrived, issued = issued, []
            for expert, slot in arrived:
                slot_of[expert] = slot
            if not waiting:
                break
            for _, slot in arrived:
                pins[slot] = 1
            for _, slot in arrived:
                pins[slot] = 0
                if waiting:
                    issued += self._serve_some(layer, waiting)
                    if not waiting:
                        ahead = then()
        for view in then() if ahead is None else ahead:
            self.commit(view)
            misses += 1
        return misses

    def _serve_some(self, layer: int, waiting: deque[int]) -> list[tuple[int, int]]:
        """(expert, slot) of those of `waiting`, which it leaves, that get a slot now."""
        issued = []
        while waiting:
            slot = self._bring((layer, waiting[0]), Reason.DEMAND)
            if slot is None:
                break
            issued.append((waiting.popleft(), slot))
        return issued
