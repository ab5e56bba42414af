"""The way of transfers, live: what a planner decides is begun, what arrives is told to it and laid in the tables."""

from collections.abc import Sequence

from smoe.offload.arena import Arena
from smoe.offload.cache import Residency
from smoe.offload.layer_pass import LayerPass
from smoe.offload.outputs import Outputs
from smoe.offload.planner import Planner
from smoe.offload.slots import View
from smoe.offload.transfer import Arrival, Transfers


class Flow:
    """One thread calls."""

    def __init__(
        self, planner: Planner, residency: Residency, transfers: Transfers, outputs: Outputs, arena: Arena
    ) -> None:
        self._planner, self._residency, self._transfers = planner, residency, transfers
        self._outputs, self._arena = outputs, arena

    def begin(self, views: Sequence[View]) -> None:
        for view in views:
            self._transfers.begin([view], self._planner.deadline(view))

    def take_back(self, views: Sequence[View]) -> None:
        """Those of background transfers that have not gone to the store."""
        for view in views:
            if self._transfers.try_cancel(view):
                self._planner.cancelled(view)

    def poll(self) -> None:
        """Takes in what has arrived, while no pass waits."""
        if self._transfers.pending:
            self._deliver(self._transfers.poll())

    def take(self, run: LayerPass, *, wait: bool = True) -> list[View]:
        """Views of the pass that have arrived, in the tables; if told to `wait`, at least one arrival of anybody's
        having been waited for. Raises the first error, after noting all arrivals."""
        views, errors, others = [], [], []
        for arrival in self._transfers.take() if wait else self._transfers.poll():
            view, tensors, error = arrival
            if not run.awaits(view):
                others.append(arrival)
            elif tensors is not None:
                self._outputs.install(view, tensors)
                run.arrived(view)
                views.append(view)
            elif run.forgives(view):
                self.begin(run.failed(view))
            else:
                errors.append(error)
        for error in errors:
            assert error is not None
            raise error
        if others:
            self._deliver(others)
        if others or run.rolls:
            self.begin(run.resume())
        return views

    def finish(self) -> None:
        """Waits for all that is under way, and all that a draft's plan begins then."""
        while self._transfers.pending:
            self._deliver(self._transfers.take())
            self.begin(self._planner.more())

    def stop(self) -> None:
        """Forgets what no pass waits for as far as it has not gone to the store, and waits for the rest."""
        for view in self._residency.background():
            if self._transfers.try_cancel(view):
                self._planner.failed(view)
        while self._transfers.pending:
            self._deliver(self._transfers.take())

    def abandon(self, run: LayerPass) -> None:
        """Ends all transfers, also those of other layers: what is left over of this pass may be any state."""
        background = self._residency.background()
        for view in background:
            self._transfers.try_cancel(view)
        while self._transfers.pending:
            self._transfers.take()
        for view in background:
            self._planner.failed(view)
        for view in (*background, *run.abandon()):
            self._arena.poison(view.slot)

    def check_integrity(self) -> None:
        begun, reserved = self._transfers.pending, self._residency.background_in_flight
        if begun != reserved:
            raise RuntimeError(f"expert transfers: {begun} under way for {reserved} slots")

    def _deliver(self, arrivals: Sequence[Arrival]) -> None:
        """Transfers that no pass waits for."""
        for arrival in arrivals:
            if arrival.tensors is None:
                self._planner.failed(arrival.view)
            else:
                self._outputs.install(arrival.view, arrival.tensors)
                self._planner.arrived(arrival.view)
