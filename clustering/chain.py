"""Table A: where a token goes next, from the devices it was on in the two layers before.

A row follows A unless T's confidence is higher than A's. Compared as expected shares, the larger of two estimates is
an optimistic one, and what A adds for a token that T knows well is not what it says of all tokens. So A's entry holds
the confidence that T must exceed, after that history, for T to be the better choice on tokens T was not counted on.

Axes: T tokens, G devices; index G of a table's first two axes stands for "no such layer".
"""

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

STRENGTH = 16.0
"""In tokens: how much the shorter history counts beside the longer one. Matters for histories met a few times only."""
ENOUGH = 64
"""Tokens of a history from which its own rule is learnt; below, A's expected share stands."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class History:
    """What A says alone: best device [G+1, G+1] i16, and `share` [G+1, G+1] f64 of a token's activations there."""

    device: Array
    share: Array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rival:
    """What T says of each token without that token's sequence: `device` [T], `confidence` [T], -1 for unknown ids."""

    device: Array
    confidence: Array


def history_table(local_TG: Array, before2_T: Array, before1_T: Array, top_k: int) -> History:
    """A history never met falls back on its last device, that one on the mean of all tokens."""
    num_devices = local_TG.shape[1]
    states = num_devices + 1
    state = state_of(before2_T, before1_T, num_devices)
    sums = np.stack(
        [np.bincount(state, weights=local_TG[:, g], minlength=states * states) for g in range(num_devices)], axis=-1
    ).reshape(states, states, num_devices)
    met = np.bincount(state, minlength=states * states).reshape(states, states, 1)
    mean = sums.sum(axis=(0, 1)) / max(1.0, float(met.sum()) * top_k)
    by_last = _blend(sums.sum(axis=0), met.sum(axis=0), mean, top_k)
    share = _blend(sums, met, by_last[None], top_k)
    device = share.argmax(axis=-1)
    return History(device=device.astype(np.int16), share=np.take_along_axis(share, device[..., None], -1)[..., 0])


def against(rival: Rival, history: History, local_TG: Array, before2_T: Array, before1_T: Array) -> tuple[Array, Array]:
    """Table A beside T: [G+1, G+1] i16 devices and f64 confidences, of all pairs the one that keeps most activations
    local when T takes the rows it is surer of."""
    device, confidence = history.device.copy(), history.share.copy()
    num_devices = local_TG.shape[1]
    rows = np.arange(len(local_TG))
    state = state_of(before2_T, before1_T, num_devices)
    order = np.lexsort((-rival.confidence, state))
    by_rival = local_TG[rows, rival.device].astype(np.int16)[order]
    gains = by_rival[:, None] - local_TG[order]
    sure = rival.confidence[order]
    start = np.searchsorted(state[order], np.arange((num_devices + 1) ** 2 + 1))
    for index, (first, last) in enumerate(itertools.pairwise(start.tolist())):
        if last - first < ENOUGH:
            continue
        cut = _best_cut(gains[first:last], local_TG[order[first:last]], sure[first:last])
        device.flat[index], confidence.flat[index] = cut
    return device, confidence


def _best_cut(gains_NG: Array, local_NG: Array, sure_N: Array) -> tuple[int, float]:
    """(device, confidence) where T takes the first rows and A, on that device, the others."""
    kept = np.vstack([np.zeros(gains_NG.shape[1], dtype=np.int64), gains_NG.cumsum(axis=0)]) + local_NG.sum(axis=0)
    # T takes rows above a confidence, so a cut can only lie where confidence changes, and above the unknown ids.
    fits = np.append(np.append(True, sure_N[1:] < sure_N[:-1]), sure_N[-1] >= 0) & np.append(True, sure_N >= 0)
    kept[~fits] = -1
    # Of equal cuts the one that leaves most to T, which knows the token.
    cut = len(kept) - 1 - int(kept.max(axis=1)[::-1].argmax())
    device = kept[cut].argmax()
    above = sure_N[cut - 1] if cut else sure_N[0]
    below = max(sure_N[cut], 0.0) if cut < len(sure_N) else 0.0
    return int(device), float(max(above + below, 0.0)) / 2


def state_of(before2_T: Array, before1_T: Array, num_devices: int) -> Array:
    return np.asarray(before2_T.astype(np.int64) * (num_devices + 1) + before1_T)


def _blend(sums: Array, met: Array, parent: Array, top_k: int) -> Array:
    return np.asarray((sums + STRENGTH * top_k * parent) / ((met + STRENGTH) * top_k))
