"""The synthetic replay of spec P5: a small shared pool, and a prefetcher that is right most of the time.

Not the figures of the spec (its trace is not given), but what they say: an LRU to which a prefetch is no use throws
prefetches away before their pass; an LRU to which it is one, and least-stale, do not.
"""

import numpy as np
import pytest

from smoe.offload.policies.future import Future
from smoe.offload.policies.oracle import Oracle
from smoe.offload.policies.spec import Geometry, parse_policies
from tests.offload.policies.support import Cache, routing

LAYERS, EXPERTS, TOP_K, TOKENS = 16, 64, 8, 60


def trace(seed=0):
    """Each layer has some liking for its popular experts, and a token keeps part of what the one before chose."""
    rng = np.random.default_rng(seed)
    liking = rng.gumbel(size=(LAYERS, EXPERTS))
    noise = rng.gumbel(size=(TOKENS, LAYERS, EXPERTS))
    noise[1:] += noise[:-1]
    ids = np.argsort(-(liking + noise), axis=-1)[..., :TOP_K]
    return [(layer, ids[token, layer].tolist()) for token in range(TOKENS) for layer in range(LAYERS)]


def replay(evict, slots, accuracy=0.85):
    passes = trace()
    future = Future.of(passes)
    geometry = Geometry(layers=tuple(range(LAYERS)), num_experts=EXPERTS, top_k=TOP_K)
    policy = parse_policies(f"evict={evict}").build(geometry, future=future).eviction
    oracle = Oracle(future, num_experts=EXPERTS, accuracy=accuracy)
    cache = Cache(policy, slots, range(LAYERS))
    for layer, experts in passes:
        if layer == 0:
            cache.epoch()
        cache.demand(layer, experts)
        seen = routing(layer, experts)
        oracle.observe(seen)
        cache.prefetch(oracle.plan(seen, (layer + 1) % LAYERS, None))
    return cache.hits / (cache.hits + cache.misses), cache.collisions


def test_lru_without_prefetch_touch_collapses_and_the_others_do_not():
    hits, collisions = {}, {}
    for evict in ("lru", "lru:no-touch", "frequency", "least-stale:fifo", "least-stale:cyclic", "belady", "random"):
        hits[evict], collisions[evict] = replay(evict, slots=51)
    good = ("lru", "least-stale:fifo", "least-stale:cyclic")
    assert all(hits[evict] > 0.8 and collisions[evict] == 0 for evict in good)
    assert hits["lru:no-touch"] < 0.25
    assert collisions["lru:no-touch"] > 4000
    assert hits["lru:no-touch"] < hits["frequency"] < min(hits[evict] for evict in good)
    assert collisions["frequency"] > 1000
    assert hits["belady"] >= max(hits.values())


def test_without_prefetch_least_stale_has_nothing_to_protect():
    hits = {evict: replay_demand(evict) for evict in ("lru", "least-stale:fifo", "least-stale:layer", "belady")}
    assert hits["lru"] > max(hits["least-stale:fifo"], hits["least-stale:layer"])
    assert hits["belady"] > max(hits["lru"], hits["least-stale:fifo"])


def replay_demand(evict):
    passes = trace()
    geometry = Geometry(layers=tuple(range(LAYERS)), num_experts=EXPERTS, top_k=TOP_K)
    policy = parse_policies(f"evict={evict}").build(geometry, future=Future.of(passes)).eviction
    cache = Cache(policy, 256, range(LAYERS))
    for layer, experts in passes:
        if layer == 0:
            cache.epoch()
        cache.demand(layer, experts)
    return cache.hits / (cache.hits + cache.misses)


@pytest.mark.parametrize("accuracy", [0.0, 0.6, 1.0])
def test_the_oracle_is_as_right_as_it_is_told(accuracy):
    passes = trace()
    oracle = Oracle(Future.of(passes), num_experts=EXPERTS, accuracy=accuracy, seed=1)
    right = named = 0
    for number, (layer, experts) in enumerate(passes[:-1]):
        seen = routing(layer, experts)
        oracle.observe(seen)
        plan = oracle.plan(seen, (layer + 1) % LAYERS, None)
        assert len(set(plan)) == TOP_K
        right += len({expert for _, expert in plan} & set(passes[number + 1][1]))
        named += len(plan)
    # six standard deviations of a binomial share
    assert abs(right / named - accuracy) <= 6 * (accuracy * (1 - accuracy) / named) ** 0.5
