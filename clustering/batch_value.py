"""The second stage for many placements at once: a dense product of counts and labels, and prices found together."""

import numpy as np

from smoe.clustering.problem import Array
from smoe.clustering.units import Units

# Bytes of one block of [rows, devices, samples] f32.
BLOCK = 64 << 20
PRICE_STEPS = 8


class BatchValue:
    """Values of placements of `units`. Counts are whole and below 2^24, so f32 sums of them are exact in any order."""

    def __init__(self, units: Units, fine: float, limit: float | None) -> None:
        self._units = units
        self._counts = units.counts.toarray().astype(np.float32)
        self._mass = units.mass.astype(np.float32)[:, None, None]
        self._fine = fine
        self._limit = limit

    def __call__(self, placed: Array) -> Array:
        """[n] activations that are local, less fines for token imbalance and for load above the limit; [n, U] in."""
        samples, devices = len(placed), self._units.num_devices
        size = max(1, BLOCK // max(1, len(self._counts) * devices * 4))
        values = np.concatenate([self._block(placed[at : at + size]) for at in range(0, samples, size)])
        if self._limit is None:
            return values
        hot = placed[:, :, None] == np.arange(devices)
        load = (hot * self._units.load[None, :, None]).sum(axis=1)
        return np.asarray(values - np.maximum(load - self._limit, 0.0).sum(axis=1))

    def _block(self, placed: Array) -> Array:
        samples, devices = len(placed), self._units.num_devices
        labels = placed.T[:, None, :] == np.arange(devices)[None, :, None]
        flat = self._counts @ labels.reshape(len(labels), -1).astype(np.float32)
        local = flat.reshape(-1, devices, samples)
        if self._fine == 0.0:
            return np.asarray(local.max(axis=1).sum(axis=0, dtype=np.float64))
        return self._dual(local)

    def _dual(self, local: Array) -> Array:
        """The least bound that a few steps of price find: sum_r max_i (local - price mass) + sum_i price share."""
        share = float(self._mass.sum(dtype=np.float64)) / self._units.num_devices
        price = np.zeros(local.shape[1:], dtype=np.float32)
        least = np.full(local.shape[2], np.inf)
        step = self._fine / 2.0
        for _ in range(PRICE_STEPS):
            score = local - price * self._mass
            best = score.max(axis=1)
            bound = best.sum(axis=0, dtype=np.float64) + price.sum(axis=0, dtype=np.float64) * share
            least = np.minimum(least, bound)
            tokens = ((score == best[:, None]) * self._mass).sum(axis=0, dtype=np.float64)
            over = tokens / max(share, 1.0) - 1.0
            price = np.clip(price + step * over, -self._fine, self._fine).astype(np.float32)
            step *= 0.75
        return least
