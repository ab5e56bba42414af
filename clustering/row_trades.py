"""Rows moved and traded one by one, for problems of few rows.

Prices and levelling treat tokens as divisible, which is right for thousands of rows and not for a dozen heavy ones.
"""

import numpy as np

from smoe.clustering.problem import Array

FEW_ROWS = 128
TOLERANCE = 1e-9
KICKED_ROWS = 3


def settle_rows(device: Array, local: Array, mass: Array, fine: float) -> None:
    """The best move of a row or trade of two, by local activations less fines, until none gains."""
    rows, devices = np.arange(len(mass)), np.arange(local.shape[1])
    share = mass.sum() / len(devices)

    def fines(tokens: Array) -> Array:
        return np.asarray(np.abs(tokens - share) * fine)

    for _ in range(8 * len(mass)):
        surplus = np.bincount(device, mass, len(devices))
        own, now = local[rows, device], fines(surplus)
        moved = local - own[:, None]
        moved -= (fines(surplus[device] - mass) - now[device])[:, None]
        moved -= fines(surplus[None, :] + mass[:, None]) - now[None, :]
        moved[rows, device] = 0.0
        heavier = mass[None, :] - mass[:, None]
        traded = local[:, device] + local[:, device].T - own[:, None] - own[None, :]
        traded -= fines(surplus[device][:, None] + heavier) - now[device][:, None]
        traded -= fines(surplus[device][None, :] - heavier) - now[device][None, :]
        traded[device[:, None] == device[None, :]] = 0.0
        best_move, best_trade = int(moved.argmax()), int(traded.argmax())
        gain = max(moved.flat[best_move], traded.flat[best_trade])
        if gain <= TOLERANCE * max(1.0, abs(own.sum())):
            return
        if moved.flat[best_move] >= traded.flat[best_trade]:
            row, target = divmod(best_move, len(devices))
            device[row] = target
        else:
            a, b = divmod(best_trade, len(mass))
            device[a], device[b] = device[b], device[a]


def shake_rows(device: Array, local: Array, mass: Array, fine: float, kicks: int, rng: np.random.Generator) -> Array:
    """The best of `kicks` settlings, each from the best so far with a few rows sent anywhere."""
    best, best_value = device, row_value(device, local, mass, fine)
    for _ in range(kicks):
        shaken = best.copy()
        rows = rng.integers(len(mass), size=min(KICKED_ROWS, len(mass)))
        shaken[rows] = rng.integers(local.shape[1], size=len(rows))
        settle_rows(shaken, local, mass, fine)
        value = row_value(shaken, local, mass, fine)
        if value > best_value:
            best, best_value = shaken, value
    return best


def row_value(device: Array, local: Array, mass: Array, fine: float) -> float:
    """Local activations less fines."""
    tokens = np.bincount(device, mass, local.shape[1])
    return float(local[np.arange(len(mass)), device].sum() - fine * np.abs(tokens - mass.sum() / len(tokens)).sum())
