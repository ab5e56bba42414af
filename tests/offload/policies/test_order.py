from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smoe.offload.policies.order import Heap, Queue

KEYS = st.tuples(st.integers(0, 6), st.integers(0, 4))
SOME = st.sets(KEYS)
LAYERS = st.lists(st.integers(0, 7), unique=True, max_size=8)


@given(st.lists(st.tuples(st.sampled_from(["append", "remove", "ask"]), KEYS, LAYERS, SOME), max_size=60))
def test_a_queue_is_a_list(steps):
    queue, plain = Queue(), OrderedDict()
    for step, key, layers, pinned in steps:
        if step == "append":
            queue.append(key[0], [key[1]])
            plain.pop(key, None)
            plain[key] = None
        elif step == "remove" and key in plain:
            queue.remove(*key)
            del plain[key]
        else:
            expected = next((k for k in plain if k[0] in layers and k not in pinned), None)
            assert queue.first(layers, lambda *k: k not in pinned) == expected  # noqa: B023 (called at once)
        assert len(queue) == len(plain)
        assert queue.keys() == list(plain)
        assert (key in queue) == (key in plain)
        assert queue.keys(key[0]) == [k for k in plain if k[0] == key[0]]
        assert queue.earliest(sorted(plain)) == next(iter(plain), None)


STEPS = st.sampled_from(["push", "remove", "rise", "fall", "fall all", "ask"])


@given(st.lists(st.tuples(STEPS, KEYS, st.integers(1, 9), LAYERS, SOME), max_size=80))
def test_a_heap_is_a_minimum(steps):
    scores = {(layer, expert): 0 for layer in range(7) for expert in range(5)}
    heap, held = Heap(scores), set()
    for step, key, change, layers, pinned in steps:
        if step == "push":
            heap.push(key)
            held.add(key)
        elif step == "remove" and key in held:
            heap.remove(key)
            held.remove(key)
        elif step == "rise":
            scores[key] += change
        elif step == "fall":
            scores[key] -= change
            if key in held:
                heap.push(key)
        elif step == "fall all":
            for each in scores:
                scores[each] -= change
            heap.rebuild()
        allowed = [(scores[k], k) for k in held if k[0] in layers and k not in pinned]
        found = heap.first(layers, lambda *k: k not in pinned)  # noqa: B023 (called at once)
        assert found == min(allowed, default=(0, None))[1]
        assert (key in heap) == (key in held)


@pytest.mark.parametrize("keys", [1, 40])
@pytest.mark.parametrize("layers", [[0], range(9)])
def test_a_heap_does_not_grow_with_its_history(keys, layers):
    heap = Heap({(0, i): 0 for i in range(keys)})
    for i in range(5000):
        heap.push((0, i % keys))
        assert heap.first(layers, lambda *key: True) == (0, 0)
    assert [len(entries) <= 5 * keys + 65 for entries in heap._heaps.values()] == [True]
