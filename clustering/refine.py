"""Swap refinement: two units trade places while that raises the activations that are local.

The value of a placement is sum_r max_i (local[i, r] - price_i mass_r): every row on its best device, where a price
makes an overfull device less attractive. A swap of a on device p with b on q changes only rows with a or b, there
only local[p] and local[q], by +-(b - a). As the max is convex, the gains of moving a and of moving b, each alone, sum
to no less than the gain of the swap: they order the candidates, and rule out all those of no positive sum exactly.
"""

import numpy as np

from smoe.clustering.problem import Array
from smoe.clustering.units import Units

# Sums of counts are exact in f64; those of weighted rows are not, and a gain must not be their rounding.
TOLERANCE = 1e-9


class SwapSearch:
    """A placement `device` [U] of `units`, its value, and its neighbours at one swap.

    `limit` is the highest load allowed on a device, in activations. A placement above it is first made to keep it.
    """

    def __init__(self, units: Units, *, limit: float | None = None) -> None:
        self.units = units
        self.limit = np.inf if limit is None else limit * (1 + TOLERANCE)
        self.load = units.load
        counts = units.counts
        self._rows = np.split(counts.indices, counts.indptr[1:-1])
        self._data = np.split(counts.data, counts.indptr[1:-1])
        self._change = np.zeros(counts.shape[0])
        self._threshold = TOLERANCE * max(float(counts.data.sum()), 1.0)

    def start(self, device: Array, price: Array | None = None) -> None:
        """Begins at `device` [U], with `price` [G] activations a token."""
        self.device = np.array(device, dtype=np.int64)
        self.device_load = np.bincount(self.device, self.load, self.units.num_devices)
        self._score = np.ascontiguousarray((self.units.counts @ self.units.one_hot(self.device)).T)
        if price is not None and price.any():
            self._score -= price[:, None] * self.units.mass
        self._best = self._score.max(axis=0)

    @property
    def value(self) -> float:
        return float(self._best.sum())

    def move_gains(self) -> Array:
        """[U, G] what the value would gain if a unit moved to a device, slots aside; 0 where it is."""
        gains = np.zeros((self.units.num_units, self.units.num_devices))
        for unit, (rows, counts) in enumerate(zip(self._rows, self._data, strict=True)):
            score = self._score[:, rows]
            score[self.device[unit]] -= counts
            without = score.max(axis=0)
            score += counts
            gains[unit] = np.maximum(score, without, out=score).sum(axis=1) - self._best[rows].sum()
        return gains

    def swap_gain(self, a: int, b: int) -> float:
        """What the value gains, exactly, when `a` and `b` trade places."""
        rows, change = self._changed(a, b)
        return float(self._swapped(rows, change, a, b).max(axis=0).sum() - self._best[rows].sum())

    def swap(self, a: int, b: int) -> None:
        rows, change = self._changed(a, b)
        score = self._swapped(rows, change, a, b)
        self._score[:, rows] = score
        self._best[rows] = score.max(axis=0)
        p, q = self.device[a], self.device[b]
        self.device_load[p] += self.load[b] - self.load[a]
        self.device_load[q] += self.load[a] - self.load[b]
        self.device[a], self.device[b] = q, p

    def _changed(self, a: int, b: int) -> tuple[Array, Array]:
        """Rows with a or b, and for each its count of b less that of a."""
        change, rows_a, rows_b = self._change, self._rows[a], self._rows[b]
        change[rows_a] = -self._data[a]
        rows = np.concatenate([rows_a, rows_b[change[rows_b] == 0.0]])
        change[rows_b] += self._data[b]
        by_row = change[rows]
        change[rows] = 0.0
        return rows, by_row

    def _swapped(self, rows: Array, change: Array, a: int, b: int) -> Array:
        score = self._score[:, rows]
        score[self.device[a]] += change
        score[self.device[b]] -= change
        return score

    def excess(self) -> float:
        """Activations above the limit, over all devices."""
        return float(np.maximum(self.device_load - self.limit, 0.0).sum())

    def _may_swap(self) -> Array:
        """[U, U] the pairs a < b that are of one kind and on two devices."""
        kind, device = self.units.kind, self.device
        return np.triu((kind[:, None] == kind) & (device[:, None] != device), 1)

    def _excess_after(self) -> Array:
        """[U, U] the excess after each swap."""
        over = np.maximum(self.device_load - self.limit, 0.0)
        moved = self.load - self.load[:, None]
        load = self.device_load[self.device]
        after = np.maximum(load[:, None] + moved - self.limit, 0.0) + np.maximum(load - moved - self.limit, 0.0)
        return np.asarray(after + over.sum() - over[self.device][:, None] - over[self.device])

    def keep_limit(self) -> None:
        """Swaps, of those that lower the excess, what costs least value per activation, until nothing is above."""
        while (excess := self.excess()) > 0.0:
            removed = excess - self._excess_after()
            allowed = self._may_swap() & (removed > self._threshold)
            if not allowed.any():
                return
            gains = self.move_gains()
            bound = gains[:, self.device]
            cost = np.where(allowed, -(bound + bound.T), np.inf)
            rate = np.where(allowed, np.maximum(cost, 0.0) + 1.0, np.inf) / np.maximum(removed, self._threshold)
            a, b = np.unravel_index(int(rate.argmin()), rate.shape)
            self.swap(int(a), int(b))

    def descend(self, *, max_candidates: int = 1 << 30) -> None:
        """Swaps until no swap that keeps the limit gains, or none of the `max_candidates` most promising does."""
        self.keep_limit()
        improved = True
        while improved:
            improved = False
            bound = self.move_gains()[:, self.device]
            bound = np.where(self._may_swap(), bound + bound.T, -np.inf).ravel()
            promising = np.flatnonzero(bound > self._threshold)
            order = promising[np.argsort(-bound[promising], kind="stable")[:max_candidates]]
            for pair in order.tolist():
                a, b = divmod(pair, self.units.num_units)
                p, q = self.device[a], self.device[b]
                if p == q or not self._keeps_limit(a, b):
                    continue
                if self.swap_gain(a, b) > self._threshold:
                    self.swap(a, b)
                    improved = True

    def _keeps_limit(self, a: int, b: int) -> bool:
        moved = self.load[b] - self.load[a]
        p, q = self.device_load[self.device[a]], self.device_load[self.device[b]]
        # Where the limit cannot be kept, the excess must not grow.
        return bool(max(p + moved, q - moved) <= max(self.limit, p, q))
