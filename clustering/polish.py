"""Local search around placements, with token prices that follow them."""

import numpy as np

from smoe.clustering.problem import Array
from smoe.clustering.refine import SwapSearch
from smoe.clustering.tokens import token_prices
from smoe.clustering.units import Units

# Prices are those of the placement that a descent began with; it begins again while new prices lead on.
PRICE_ROUNDS = 3
SWEEPS = 3
# Pairs tried in each pass of a descent, by unit: the most promising ones.
CANDIDATES = 16


class Polish:
    """Swaps in `units` under a load limit and a fine for tokens above a device's share."""

    def __init__(self, units: Units, limit: float | None, fine: float) -> None:
        self.units = units
        self.limit = limit
        self.fine = fine
        self._search = SwapSearch(units, limit=limit)

    def prices(self, device: Array) -> Array:
        if self.fine == 0.0:
            return np.zeros(self.units.num_devices)
        local = self.units.counts @ self.units.one_hot(device)
        return token_prices(np.asarray(local), self.units.mass, self.fine, SWEEPS)

    def key(self, device: Array) -> tuple[float, float]:
        """Sorts placements, the best first: those that keep the limit, then by value at their own prices."""
        price = self.prices(device)
        self._search.start(device, price)
        share = float(self.units.mass.sum()) / self.units.num_devices
        return self._search.excess(), -(self._search.value + share * float(price.sum()))

    def within_limit(self, device: Array) -> Array:
        self._search.start(device)
        self._search.keep_limit()
        return self._search.device

    def descend(self, device: Array) -> Array:
        best, best_key = device, (np.inf, np.inf)
        for _ in range(PRICE_ROUNDS):
            self._search.start(best, self.prices(best))
            self._search.descend(max_candidates=CANDIDATES * self.units.num_units)
            found = self._search.device
            key = self.key(found)
            if key >= best_key:
                break
            best, best_key = found, key
            if self.fine == 0.0:
                break
        return best

    def kick(self, device: Array, kicks: int, swaps: int, rng: np.random.Generator) -> Array:
        """The best of `kicks` descents, each from the best so far with `swaps` random swaps."""
        best, best_key = device, self.key(device)
        for _ in range(kicks):
            found = self.descend(self._shaken(best, swaps, rng))
            key = self.key(found)
            if key < best_key:
                best, best_key = found, key
        return best

    def _shaken(self, device: Array, swaps: int, rng: np.random.Generator) -> Array:
        shaken = device.copy()
        for _ in range(swaps):
            a = int(rng.integers(len(shaken)))
            others = np.flatnonzero((self.units.kind == self.units.kind[a]) & (shaken != shaken[a]))
            if len(others):
                b = others[int(rng.integers(len(others)))]
                shaken[a], shaken[b] = shaken[b], shaken[a]
        return shaken
