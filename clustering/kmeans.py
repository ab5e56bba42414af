"""Balanced k-means in two dimensions: rows and experts are clustered in turn, each by where the other's clusters are.

The source names the method and no more. This is its strongest plain reading: a row is described by the shares of its
activations in the clusters of experts, an expert by the shares of its activations in the clusters of rows; both go to
the nearest centroid, the experts by the assignment of least total distance that gives each cluster its exact size.
"""

import numpy as np

from smoe.clustering.problem import Array, LayerProblem
from smoe.clustering.units import Units, nearest_placement

STARTS = 8
ROUNDS = 30


def kmeans(problem: LayerProblem, units: Units, rng: np.random.Generator) -> list[Array]:
    """One placement for each of several starts from random rows as centroids."""
    return [_one(units, rng) for _ in range(STARTS)]


def _one(units: Units, rng: np.random.Generator) -> Array:
    device = _seeded(units, rng)
    for _ in range(ROUNDS):
        clusters = _row_clusters(units, device)
        # [U, G] activations of an expert in each cluster of rows.
        use = units.counts.T @ (clusters[:, None] == np.arange(units.num_devices)).astype(np.float64)
        profile = _shares(np.asarray(use))
        centroid = _means(profile, units.load, device, units.num_devices)
        moved = nearest_placement(units, -_distances(profile, centroid) * (units.load[:, None] + 1.0))
        if np.array_equal(moved, device):
            break
        device = moved
    return device


def _row_clusters(units: Units, device: Array) -> Array:
    """[R] the cluster of each row: nearest centroid, where each device's own axis is where its centroid begins."""
    profile = _shares(np.asarray(units.counts @ units.one_hot(device)))
    clusters = profile.argmax(axis=1)
    for _ in range(ROUNDS):
        centroid = _means(profile, units.mass, clusters, units.num_devices)
        nearest = _distances(profile, centroid).argmin(axis=1)
        if np.array_equal(nearest, clusters):
            break
        clusters = nearest
    return np.asarray(clusters)


def _seeded(units: Units, rng: np.random.Generator) -> Array:
    """Experts by their use in rows that are far apart, as k-means++ draws them."""
    total = float(units.mass.sum())
    if total == 0.0:
        return nearest_placement(units, rng.random((units.num_units, units.num_devices)))
    rows = units.counts.tocsr()
    profile_norm = np.asarray(rows.multiply(rows).sum(axis=1)).ravel() / units.mass**2
    distance = np.full(len(profile_norm), np.inf)
    wish = np.zeros((units.num_units, units.num_devices))
    for cluster in range(units.num_devices):
        chance = units.mass * np.where(np.isinf(distance), 1.0, distance)
        chance = units.mass if chance.sum() == 0.0 else chance
        row = int(rng.choice(len(chance), p=chance / chance.sum()))
        wish[:, cluster] = rows[[row]].toarray()[0] / units.mass[row]
        cross = (rows @ wish[:, cluster]) / units.mass
        apart = profile_norm - 2 * cross + float(wish[:, cluster] @ wish[:, cluster])
        distance = np.minimum(distance, np.maximum(apart, 0.0))
    return nearest_placement(units, wish + rng.random(wish.shape) * 1e-6)


def _shares(use: Array) -> Array:
    return np.asarray(use / np.maximum(use.sum(axis=1, keepdims=True), 1e-300))


def _means(points: Array, weight: Array, cluster: Array, num_clusters: int) -> Array:
    """[G, D] weighted means; a cluster of no weight stays at its own axis."""
    hot = (cluster[:, None] == np.arange(num_clusters)) * weight[:, None]
    total = hot.sum(axis=0)
    means = np.einsum("ng,nd->gd", hot, points) / np.maximum(total, 1e-300)[:, None]
    return np.where(total[:, None] > 0.0, means, np.eye(num_clusters))


def _distances(points: Array, centroid: Array) -> Array:
    """[N, G] squared."""
    return np.stack([((points - mean) ** 2).sum(axis=1) for mean in centroid], axis=1)
