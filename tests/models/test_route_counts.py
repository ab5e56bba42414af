"""Choices counted against choices counted by hand, in one thread and while another one reads."""

import threading

import torch

from smoe.core.stats import RoutingStats
from smoe.models.loading import open_checkpoint
from smoe.models.route_counts import RouteCounts

SPEC = open_checkpoint("builtin").spec
LAYERS = SPEC.moe_layers
EXPERTS = SPEC.moe(LAYERS[0]).router.num_experts


def ids(rows: int, seed: int) -> torch.Tensor:
    """[T, 4] i32, distinct within a row."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(rows, EXPERTS, generator=generator).argsort(1)[:, :4].int()


def by_hand(noted: list[tuple[int, torch.Tensor]]) -> tuple[tuple[int, ...], ...]:
    loads = {layer: [0] * EXPERTS for layer in LAYERS}
    for layer, ids_TK in noted:
        for expert in ids_TK.flatten().tolist():
            loads[layer][expert] += 1
    return tuple(tuple(load) for load in loads.values())


def test_steps_of_every_size_are_counted_once() -> None:
    counts, noted = RouteCounts(SPEC), []
    for step, rows in enumerate([1] * 150 + [40, 3, 64, 65, 0]):
        for layer in LAYERS:
            noted.append((layer, ids(rows, seed=step + layer)))
            counts.note(*noted[-1])
        if step in (0, 70):
            assert counts.stats().loads == by_hand(noted)
    found, expected = counts.stats(), by_hand(noted)
    assert found.loads == expected
    assert found.by_device == (found.choices,) == (found.local,)
    assert counts.stats() == found


def test_choices_go_where_their_experts_were_at_the_time() -> None:
    counts, noted = RouteCounts(SPEC), [(layer, ids(20, seed=layer)) for layer in LAYERS]
    first = {layer: torch.arange(EXPERTS) % 3 for layer in LAYERS}
    then = {layer: (torch.arange(EXPERTS) + layer) % 3 for layer in LAYERS}
    sent = [0, 0, 0]
    for places in (first, then, first):
        counts.use(places, own=2, size=3)
        for layer, ids_TK in noted:
            counts.note(layer, ids_TK)
            for place in places[layer][ids_TK.long()].flatten().tolist():
                sent[place] += 1
    found = counts.stats()
    assert found.by_device == tuple(sent)
    assert found.local == sent[2]
    assert found.loads == by_hand(noted * 3)


def test_reading_beside_the_model_loses_nothing() -> None:
    counts, one = RouteCounts(SPEC), ids(1, seed=0)
    seen: list[int] = []

    def read() -> None:
        while model.is_alive():
            seen.append(counts.stats().choices)

    def note() -> None:
        for _ in range(5000):
            counts.note(LAYERS[0], one)

    model = threading.Thread(target=note)
    reader = threading.Thread(target=read)
    model.start()
    reader.start()
    model.join()
    reader.join()
    assert counts.stats().choices == 5000 * 4
    assert seen == sorted(seen)


def test_counts_of_an_interval_and_of_several_devices() -> None:
    a = RoutingStats(loads=((1, 2), (3, 4)), by_device=(4, 6), local=5)
    b = RoutingStats(loads=((1, 1), (1, 1)), by_device=(2, 2), local=1)
    assert a.plus(b).since(b) == a
    assert a.since(RoutingStats()) == a
    assert RoutingStats().plus(a) == a
    assert a.plus(b).choices == 14
