"""What a placement made from one kind of text is worth on another, and how much text it takes.

Axes: L layers, E experts, G devices.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from smoe.clustering.evaluate import best_local, destinations, lar_of
from smoe.clustering.journey import follow
from smoe.clustering.tables import build_tables, seen_ids, vocab_of
from smoe.core.route_edit import select_sequences
from smoe.core.route_trace import RouteTrace

Array = npt.NDArray[Any]
Place = Callable[[RouteTrace], Array]
"""[L, E, G] bool from a trace to fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transferred:
    """Held-out means over layers: `lar_token` by T, `lar_chain` by T and A, `lar_best` on a token's best device."""

    fit: str
    judged: str
    fit_tokens: int
    unseen: float
    lar_token: float
    lar_chain: float
    lar_best: float


def transfer(fits: Mapping[str, RouteTrace], judges: Mapping[str, RouteTrace], place: Place) -> list[Transferred]:
    """Every fit on every judge. Those of one name must not share sequences."""
    found = []
    for fit_name, fit in fits.items():
        on_device = place(fit)
        found += [judge_one(fit_name, fit, name, heldout, on_device) for name, heldout in judges.items()]
    return found


def by_length(
    fit: RouteTrace, heldout: RouteTrace, shares: Sequence[float], place: Place, *, seed: int = 0
) -> list[Transferred]:
    """Placement and tables from the first `share` of the sequences in an order drawn by `seed`."""
    order = np.random.default_rng(seed).permutation(fit.num_sequences)
    found = []
    for share in shares:
        part = select_sequences(fit, sorted(order[: max(1, round(share * len(order)))].tolist()))
        found.append(judge_one(f"{share:.0%}", part, "held-out", heldout, place(part)))
    return found


def judge_one(fit_name: str, fit: RouteTrace, name: str, heldout: RouteTrace, on_device: Array) -> Transferred:
    tables = build_tables(fit, on_device, vocab_size=vocab_of(fit, heldout))
    journey = follow(heldout, on_device)
    token, chain = ([w.device for w in destinations(tables, heldout, journey, chain=c)] for c in (False, True))
    return Transferred(
        fit=fit_name,
        judged=name,
        fit_tokens=fit.num_tokens,
        unseen=float(np.mean(~np.isin(heldout.token_ids, seen_ids(fit)))),
        lar_token=float(np.mean(lar_of(journey, token, heldout.top_k))),
        lar_chain=float(np.mean(lar_of(journey, chain, heldout.top_k))),
        lar_best=float(np.mean(best_local(journey, heldout.top_k))),
    )
