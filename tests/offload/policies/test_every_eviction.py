"""What every eviction policy owes, whatever it is told: a victim that may go, and nobody lost or left over."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smoe.offload.policies.catalog import EVICT
from smoe.offload.policies.future import Future
from smoe.offload.policies.params import Word
from smoe.offload.policies.spec import Geometry, parse_policies
from tests.offload.policies.support import A, D, P, routing

LAYERS = (0, 1, 2, 4, 5, 7)
EXPERTS = range(4)
NAMES = [
    f"evict={name}" + (f":{word}" if word else "")
    for name, policy in EVICT.items()
    for word in next((param.choices for param in policy.params.values() if isinstance(param, Word)), ("",))
]
KEYS = st.tuples(st.sampled_from(LAYERS), st.sampled_from(EXPERTS))
STEPS = st.sampled_from(["epoch", "pass", "admit", "prefetch", "forget", "confirm", "evict"])
STEP = st.tuples(STEPS, KEYS, st.sets(KEYS), st.lists(st.sampled_from(LAYERS), unique=True, min_size=1))


@pytest.mark.parametrize("text", NAMES)
@given(steps=st.lists(STEP, max_size=60))
@settings(max_examples=60)
def test_victims_may_go_and_all_can_leave(text, steps):
    passes = [(layer, sorted({e for _, e in some} | {1})) for step, (layer, _), some, _ in steps if step == "pass"]
    spec = parse_policies(text)
    geometry = Geometry(layers=LAYERS, num_experts=len(EXPERTS), top_k=2)
    policy = spec.build(geometry, seed=3, future=Future.of(passes)).eviction
    held, turn = set(), iter(passes)
    for step, key, some, layers in steps:
        if step == "epoch":
            policy.begin_epoch()
        elif step == "pass":
            layer, experts = next(turn)
            policy.begin_layer(layer)
            weights = np.full((1, len(experts)), 1 / len(experts))
            policy.demand(routing(layer, experts, weights=weights))
            policy.touch(layer, [expert for expert in experts if (layer, expert) in held])
        elif step in ("admit", "prefetch") and key not in held:
            policy.admit(*key, P if step == "prefetch" else D)
            held.add(key)
        elif step == "forget" and key in held:
            policy.forget(*key)
            held.remove(key)
        elif step == "confirm":
            policy.confirm(key[0], [expert for layer, expert in held if layer == key[0]])
        elif step == "evict":
            allowed = {k for k in held if k[0] in layers and k not in some}
            victim = policy.victim(layers, lambda *k: k in held and k not in some, key, A)  # noqa: B023
            if victim is None:
                assert not allowed or text == "evict=belady:free"
            else:
                assert victim in allowed
                policy.forget(*victim)
                held.remove(victim)
    gone = set()
    while held and (victim := policy.victim(LAYERS, lambda *k: True, (0, 0), D)) is not None:
        policy.forget(*victim)
        gone.add(victim)
    assert gone == held or text == "evict=belady:free"
    assert policy.victim(LAYERS, lambda *k: True, (0, 0), D) is None or text == "evict=belady:free"


@pytest.mark.parametrize("text", NAMES)
def test_equal_calls_give_equal_victims(text):
    def run():
        rng = np.random.default_rng(5)
        passes = [(layer, rng.choice(16, 2, replace=False).tolist()) for _ in range(20) for layer in LAYERS]
        geometry = Geometry(layers=LAYERS, num_experts=16, top_k=2)
        policy = parse_policies(text).build(geometry, seed=1, future=Future.of(passes)).eviction
        held, victims = set(), []
        for layer, experts in passes:
            if layer == 0:
                policy.begin_epoch()
            policy.begin_layer(layer)
            policy.demand(routing(layer, experts, weights=[[0.5, 0.5]]))
            for expert in experts:
                if (layer, expert) in held:
                    policy.touch(layer, [expert])
                    continue
                if len(held) >= 20:
                    victim = policy.victim(LAYERS, lambda *k: True, (layer, expert), D)
                    victims.append(victim)
                    if victim is None:
                        continue
                    policy.forget(*victim)
                    held.remove(victim)
                policy.admit(layer, expert, D)
                held.add((layer, expert))
        return victims

    first = run()
    assert first == run()
    assert len(first) > 50
