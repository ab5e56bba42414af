"""The second stage: rows to devices when the experts are placed, by locality against token balance.

In activations the programme is: raise sum_r local[r, device(r)] - fine * sum_i |tokens_i - S / G|. Its dual has a
price for a token on each device, within +-fine, and every row goes where local less the price of its tokens is most.
"""

import numpy as np

from smoe.clustering.problem import Array, LayerProblem
from smoe.clustering.row_trades import FEW_ROWS, settle_rows

# Prices need not be exact: what they leave uneven is levelled row by row.
SWEEPS = 3
SETTLED = 0.01
WORTH = 0.01
# Rows seen at most this often speak for tokens never seen.
RARE = 3


def fine_of(counts_total: float, mass_total: float, theta: float) -> float:
    """Activations that one token above its device's share costs: theta's side of the programme over the other's."""
    return theta / (1.0 - theta) * counts_total / max(mass_total, 1.0)


def negligible(counts_total: float, mass_total: float, fine: float) -> bool:
    """Whether all fines together cannot come to a hundredth of the activations: they hardly tell placements apart,
    and prices are most of a search's time."""
    return 2.0 * fine * mass_total < WORTH * counts_total


def token_prices(local: Array, mass: Array, fine: float, sweeps: int = SWEEPS) -> Array:
    """[G] activations a token, within +-`fine`: each in turn set so that its device gets its share, if that can be."""
    num_rows, num_devices = local.shape
    price = np.zeros(num_devices)
    if num_rows == 0 or num_devices == 1 or fine == 0.0:
        return price
    share = mass.sum() / num_devices
    for _ in range(sweeps):
        before = price.copy()
        for device in range(num_devices):
            score = local - price * mass[:, None]
            score[:, device] = -np.inf
            # A row comes here at any price below this.
            threshold = (local[:, device] - score.max(axis=1)) / mass
            order = np.argsort(-threshold, kind="stable")
            cut = int(np.searchsorted(np.cumsum(mass[order]), share))
            price[device] = np.clip(threshold[order[min(cut, num_rows - 1)]], -fine, fine)
        if np.abs(price - before).max() <= SETTLED * fine:
            break
    return price


def assign_rows(local: Array, mass: Array, fine: float) -> Array:
    """[R] i16 device of each row: by price, then moved off overfull devices where the fine is more than the loss."""
    free = negligible(float(local.sum()), float(mass.sum()), fine)
    device = (local if free else local - token_prices(local, mass, fine) * mass[:, None]).argmax(axis=1)
    if fine > 0.0 and local.shape[1] > 1:
        _level(device, local, mass, fine)
        if len(mass) <= FEW_ROWS:
            settle_rows(device, local, mass, fine)
    return np.asarray(device, dtype=np.int16)


def _level(device: Array, local: Array, mass: Array, fine: float) -> None:
    """Walks the rows of the fullest device, cheapest loss a token first, to the emptiest, until no walk moves any."""
    num_devices = local.shape[1]
    share = mass.sum() / num_devices
    while True:
        surplus = np.bincount(device, mass, num_devices) - share
        moved = False
        for source in np.argsort(-surplus, kind="stable"):
            for target in np.argsort(surplus, kind="stable"):
                room = min(surplus[source], -surplus[target])
                if room <= 0.0:
                    break
                rows = np.flatnonzero(device == source)
                loss = (local[rows, source] - local[rows, target]) / mass[rows]
                # Moving m tokens from above the share to below it saves 2 m fine.
                worth = np.flatnonzero((loss < 2.0 * fine) & (mass[rows] <= room))
                order = worth[np.argsort(loss[worth], kind="stable")]
                taken = rows[order[np.cumsum(mass[rows[order]]) <= room]]
                if len(taken):
                    device[taken] = target
                    amount = mass[taken].sum()
                    surplus[source] -= amount
                    surplus[target] += amount
                    moved = True
        if not moved:
            return


def unseen_device(problem: LayerProblem, expert_device: Array) -> int:
    """Where to send a token that no row stands for: the device that tokens seen rarely use most.

    What is unseen resembles what is rare, not what is common: frequent tokens have experts of their own.
    """
    local = problem.local(expert_device)
    rare = local[problem.mass <= RARE]
    return int((rare if rare.size else local).sum(axis=0).argmax())
