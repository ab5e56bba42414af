"""Clusters onto devices, so that what is heavy travels over what is cheap: a quadratic assignment.

Axes: L layers, G devices and as many clusters, N permutations.
"""

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from smoe.core.errors import ConfigError

Array = npt.NDArray[Any]

EXACT_DEVICES = 8
"""Up to here every assignment is tried: 40,320 of them."""
_STARTS = 12


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Mapping:
    """`device_of_cluster` [L, G] i16, and the seconds of link time before (each cluster on the device of its number)
    and after. `exact`: no other mapping is cheaper."""

    device_of_cluster: Array
    seconds_before: float
    seconds_after: float
    exact: bool


def map_clusters(
    traffic: Array, cost: Array, *, slots_of_device: tuple[int, ...], flows: Array | None = None, seed: int = 0
) -> Mapping:
    """`traffic` [L, G, G] bytes from cluster to cluster within a layer; `flows` [L-1, G, G] bytes from a cluster of one
    layer to one of the next, if tokens move in between. `cost` [G, G] seconds a byte, as Topology.cost: the
    same both ways, and 0 to oneself.

    Clusters only go to devices with as many slots as they need. Never worse than leaving clusters where they are;
    equal arguments give equal answers. Raises ConfigError for sizes that do not fit and values that are not bytes.
    """
    num_layers, num_devices = _check(traffic, cost, slots_of_device, flows)
    slots = np.asarray(slots_of_device)
    rng = np.random.default_rng(seed)
    small = num_devices <= EXACT_DEVICES
    candidates = _assignments(slots) if small else None
    stay = np.tile(np.arange(num_devices), (num_layers, 1))
    mapping = stay
    if flows is not None:
        begun = [stay, *(_chain(_shuffled(slots, rng), traffic, cost, slots, flows) for _ in range(_STARTS))]
        settled = [_settle(each, traffic, cost, slots, flows) for each in begun]
        mapping = min(settled, key=lambda each: link_seconds(each, traffic, cost, flows))
    mapping = mapping.copy()
    for layer in range(num_layers):
        pull = _pull(mapping, layer, cost, flows)
        mapping[layer] = _assign(traffic[layer], pull, cost, slots, mapping[layer], candidates, rng)
    before, after = (link_seconds(each, traffic, cost, flows) for each in (stay, mapping))
    return Mapping(
        device_of_cluster=mapping.astype(np.int16),
        seconds_before=before,
        seconds_after=after,
        exact=small and flows is None,
    )


def link_seconds(mapping: Array, traffic: Array, cost: Array, flows: Array | None = None) -> float:
    """Seconds of link time of all bytes when cluster c of layer l is on device mapping[l, c]."""
    total = sum(float((bytes_GG * cost[np.ix_(at, at)]).sum()) for bytes_GG, at in zip(traffic, mapping, strict=True))
    if flows is not None:
        for bytes_GG, (here, there) in zip(flows, itertools.pairwise(mapping), strict=True):
            total += float((bytes_GG * cost[np.ix_(here, there)]).sum())
    return total


def on_devices(mapping: Array, traffic: Array) -> Array:
    """[L, G, G] bytes from device to device, of traffic from cluster to cluster."""
    moved = np.empty_like(traffic)
    for layer, at in enumerate(mapping):
        moved[layer][np.ix_(at, at)] = traffic[layer]
    return moved


def _assignments(slots: Array) -> Array:
    """[N, G]: every permutation that keeps the number of slots, in lexicographic order."""
    every = np.array(list(itertools.permutations(range(len(slots)))))
    return np.asarray(every[(slots[every] == slots).all(axis=1)])


def _chain(first: Array, traffic: Array, cost: Array, slots: Array, flows: Array) -> Array:
    """[L, G]: from the first layer's devices on, every layer where it suits the one before."""
    mapping = np.tile(first, (len(traffic), 1))
    for layer in range(1, len(traffic)):
        pull = flows[layer - 1].T @ cost[mapping[layer - 1]]
        mapping[layer] = _swap(_linear(pull, slots), traffic[layer], pull, cost, slots)
    return mapping


def _settle(mapping: Array, traffic: Array, cost: Array, slots: Array, flows: Array) -> Array:
    """Layer by layer, each given its neighbours, until none gains."""
    mapping = mapping.copy()
    total = link_seconds(mapping, traffic, cost, flows)
    while True:
        for layer in range(len(mapping)):
            pull = _pull(mapping, layer, cost, flows)
            found = [_swap(at, traffic[layer], pull, cost, slots) for at in (mapping[layer], _linear(pull, slots))]
            mapping[layer] = min(found, key=lambda at: _of(at, traffic[layer], pull, cost))
        settled = link_seconds(mapping, traffic, cost, flows)
        if settled >= total * (1 - 1e-9):
            return mapping
        total = settled


def _linear(pull: Array, slots: Array) -> Array:
    """The device of each cluster [G] that is best for the neighbouring layers alone."""
    from scipy.optimize import linear_sum_assignment

    forbidden = (slots[:, None] != slots[None, :]) * (1.0 + 2.0 * float(pull.sum()))
    return np.asarray(linear_sum_assignment(pull + forbidden)[1])


def _pull(mapping: Array, layer: int, cost: Array, flows: Array | None) -> Array:
    """[G, G] seconds of the bytes from and to the neighbouring layers, by cluster of this layer and its device."""
    pull = np.zeros(cost.shape)
    if flows is not None:
        if layer > 0:
            pull += flows[layer - 1].T @ cost[mapping[layer - 1]]
        if layer < len(flows):
            pull += flows[layer] @ cost[:, mapping[layer + 1]].T
    return pull


def _assign(
    traffic: Array,
    pull: Array,
    cost: Array,
    slots: Array,
    start: Array,
    candidates: Array | None,
    rng: np.random.Generator,
) -> Array:
    """The device of each cluster [G] in one layer."""
    if candidates is not None:
        seconds = _of_many(candidates, traffic, pull, cost)
        # The first of the cheapest, and the present one where it is among them.
        cheapest = seconds.min()
        return start if _of(start, traffic, pull, cost) <= cheapest * (1 + 1e-12) else candidates[seconds.argmin()]
    starts = [start, *(_shuffled(slots, rng) for _ in range(_STARTS))]
    found = [_swap(at, traffic, pull, cost, slots) for at in starts]
    seconds = np.array([_of(at, traffic, pull, cost) for at in found])
    return found[int(seconds.argmin())]


def _swap(at: Array, traffic: Array, pull: Array, cost: Array, slots: Array) -> Array:
    """The best exchange of two clusters, again and again until none helps."""
    at = at.copy()
    both = traffic + traffic.T
    np.fill_diagonal(both, 0.0)
    unequal = slots[:, None] != slots[None, :]
    least = 1e-12 * (_of(at, traffic, pull, cost) + 1e-300)
    while True:
        # What exchanging clusters r and s saves, for all pairs at once; costs are the same both ways and 0 to oneself.
        near = cost[np.ix_(at, at)]
        swapped = both @ near
        own = np.diagonal(swapped)
        change = swapped + swapped.T - own[:, None] - own[None, :] + 2 * both * near
        drawn = pull[:, at]
        own = np.diagonal(drawn)
        change += drawn + drawn.T - own[:, None] - own[None, :]
        change[unequal] = 0.0
        r, s = np.unravel_index(int(change.argmin()), change.shape)
        if change[r, s] >= -least:
            return at
        at[[r, s]] = at[[s, r]]


def _shuffled(slots: Array, rng: np.random.Generator) -> Array:
    """A random permutation that keeps the number of slots."""
    at = np.arange(len(slots))
    for count in np.unique(slots):
        same = np.flatnonzero(slots == count)
        at[same] = rng.permutation(same)
    return at


def _of(at: Array, traffic: Array, pull: Array, cost: Array) -> float:
    return float((traffic * cost[np.ix_(at, at)]).sum() + pull[np.arange(len(at)), at].sum())


def _of_many(at: Array, traffic: Array, pull: Array, cost: Array) -> Array:
    """[N] seconds, summed cluster by cluster so that memory stays a few vectors of N."""
    both = traffic + traffic.T
    seconds = np.zeros(len(at))
    for a in range(at.shape[1]):
        seconds += pull[a, at[:, a]]
        for b in range(a):
            if both[a, b]:
                seconds += both[a, b] * cost[at[:, a], at[:, b]]
    return seconds


def _check(traffic: Array, cost: Array, slots_of_device: tuple[int, ...], flows: Array | None) -> tuple[int, int]:
    devices = len(slots_of_device)
    if cost.shape != (devices, devices):
        raise ConfigError("topology", f"{len(cost)} devices", f"the {devices} devices of the placement")
    if traffic.ndim != 3 or traffic.shape[1:] != (devices, devices):
        raise ConfigError("traffic", list(traffic.shape), f"layers of [{devices}, {devices}]")
    if flows is not None and flows.shape != (len(traffic) - 1, devices, devices):
        raise ConfigError("flows", list(flows.shape), f"{len(traffic) - 1} steps of [{devices}, {devices}]")
    for field, values in (("traffic", traffic), ("flows", flows)):
        if values is not None and not ((values >= 0) & np.isfinite(values)).all():
            wrong = values[~((values >= 0) & np.isfinite(values))].flat[0]
            raise ConfigError(field, float(wrong), "bytes, 0 or above")
    assert (cost == cost.T).all()
    assert not np.diagonal(cost).any()
    return len(traffic), devices
