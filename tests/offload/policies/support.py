"""A cache of slots without engine, to let eviction policies decide."""

import numpy as np

from smoe.offload.policies.protocols import Reason, Routing

D, P, A = Reason.DEMAND, Reason.PREFETCH, Reason.ADMISSION


def anyone(layer, expert):
    return True


def routing(layer, *rows, weights=None, logits=None, tokens=None):
    ids = np.array(rows, dtype=np.int32)
    return Routing(
        layer=layer,
        ids=ids,
        weights=None if weights is None else np.array(weights, dtype=np.float32),
        logits=None if logits is None else np.array(logits, dtype=np.float32),
        token_ids=None if tokens is None else np.array(tokens, dtype=np.int32),
    )


def leave(policy, layers=(0,), wanted=(0, 99), reason=D):
    """Lets everyone go, in the policy's order."""
    gone = []
    while (victim := policy.victim(layers, anyone, wanted, reason)) is not None:
        gone.append(victim)
        policy.forget(*victim)
    return gone


class Cache:
    """`size` slots shared by all layers; transfers arrive at once; what the pass demands is pinned."""

    def __init__(self, policy, size, layers):
        self.policy, self.size, self.layers = policy, size, layers
        self.held, self.brought = set(), set()
        self.hits = self.misses = self.collisions = 0

    def epoch(self):
        self.policy.begin_epoch()
        self.brought.clear()

    def demand(self, layer, experts, weights=None):
        self.policy.begin_layer(layer)
        self.policy.demand(routing(layer, experts, weights=weights and [weights]))
        hits = [expert for expert in experts if (layer, expert) in self.held]
        self.hits += len(hits)
        if hits:
            self.policy.touch(layer, hits)
        pinned = {(layer, expert) for expert in hits}
        for expert in experts:
            if expert not in hits:
                self.misses += 1
                self.collisions += (layer, expert) in self.brought
                self.bring((layer, expert), D, pinned)
                pinned.add((layer, expert))

    def prefetch(self, keys, pinned=frozenset()):
        for layer, expert in keys:
            if (layer, expert) in self.held:
                self.policy.confirm(layer, [expert])
            else:
                self.bring((layer, expert), P, pinned)

    def bring(self, key, reason, pinned):
        if len(self.held) == self.size:
            victim = self.policy.victim(self.layers, lambda *k: k in self.held and k not in pinned, key, reason)
            if victim is None:
                return
            assert victim in self.held - set(pinned)
            self.held.remove(victim)
            self.policy.forget(*victim)
        self.held.add(key)
        self.brought.add(key)
        self.policy.admit(*key, reason)
