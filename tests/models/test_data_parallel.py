"""Groups of ranks that attend to rows of their own over common experts compute what the whole model does."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoConfig

from smoe.collectives.group import Group, SoloGroup
from smoe.collectives.schedules.plain import AllReduce, Scatter
from smoe.collectives.schedules.speculative import Speculative
from smoe.models.batch import Batch
from smoe.models.kv import KVCache
from smoe.models.loading import Checkpoint, open_checkpoint
from tests.collectives.tables import make_tables
from tests.collectives.thread_group import run_groups
from tests.models.parity import write_checkpoint
from tests.models.sharded import COMMON, FAMILIES, random_places, rank_decoder, whole_decoder

TOLERANCE = 1e-4  # max abs difference of logits in fp32, the project's promise
REACH = 16  # rows of KV memory of one sequence

Step = list[tuple[list[int], int, int]]
"""(new tokens, past, sequence) of each span."""


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module", params=FAMILIES)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    name, options, how = FAMILIES[request.param]
    config = AutoConfig.for_model(name, **(COMMON | options))
    folder: Path = write_checkpoint(config, tmp_path_factory.mktemp(request.param), **how)
    return open_checkpoint(folder)


def random_steps(num_sequences: int, seed: int) -> list[Step]:
    """Prompts in chunks of 1 to 7 tokens, then single tokens; in many steps a group has no row, or all rows."""
    rng = np.random.default_rng(seed)
    past = [0] * num_sequences
    steps: list[Step] = []
    for count in (7, 3, 1, 5, 1, 1, 1):
        chosen = rng.choice(num_sequences, rng.integers(1, num_sequences + 1), replace=False)
        step = []
        for sequence in sorted(chosen.tolist()):
            room = min(count, REACH - past[sequence])
            if room:
                step.append((rng.integers(0, 89, room).tolist(), past[sequence], sequence))
                past[sequence] += room
        if step:
            steps.append(step)
    return steps


def run_steps(decoder, steps: list[Step], *, own: tuple[int, ...]) -> list[dict[int, torch.Tensor]]:
    """By step, the last row's logits of each sequence of `own`; the other ones' spans are left out."""
    kv = KVCache(decoder.spec, num_rows=REACH * len(own), num_states=len(own), dtype=decoder.dtype)
    found = []
    for step in steps:
        spans = [(t, own.index(s) * REACH, past, own.index(s)) for t, past, s in step if s in own]
        logits = decoder.forward(Batch.build(spans), kv)
        found.append(dict(zip([s for _, _, s in step if s in own], logits, strict=True)))
    return found


SHAPES = [(2, 1), (4, 1), (2, 2)]


@pytest.mark.parametrize(("groups", "size"), SHAPES)
def test_every_family_over_groups_is_the_whole_model(checkpoint: Checkpoint, groups: int, size: int) -> None:
    """Sequences in all groups but the last of several, which works for the others alone in every step."""
    steps = random_steps(4, seed=groups)
    busy = max(2, groups - 1)
    members = [tuple(s for s in range(4) if s % busy == group) for group in range(groups)]
    expected = run_steps(whole_decoder(checkpoint, torch.float32), steps, own=(0, 1, 2, 3))
    places = random_places(checkpoint, groups * size, seed=3)
    layers = checkpoint.spec.moe_layers
    tables = make_tables(groups * size, seed=size, vocab=80, layers=len(layers))
    schedules = {
        "allreduce": AllReduce,
        "scatter": Scatter,
        "speculative": lambda group: Speculative(group, tables, layers),
        "speculative, ragged": lambda group: Speculative(group, tables, layers, capacity_factor=2.0),
    }
    results = {}
    for name, make in schedules.items() if size > 1 else [("scatter", Scatter)]:

        def body(everyone: Group, own: Group, make=make):
            tensor = SoloGroup(everyone.ledger, everyone.rank) if size == 1 else own
            decoder = rank_decoder(checkpoint, torch.float32, everyone, make, places, tensor=tensor)
            return run_steps(decoder, steps, own=members[everyone.rank // size])

        results[name] = run_groups(groups, size, body)[::size]
        for number, wanted in enumerate(expected):
            found: dict[int, torch.Tensor] = {}
            for group in range(groups):
                found |= results[name][group][number]
            assert found.keys() == wanted.keys(), (name, number)
            for sequence, logits in wanted.items():
                assert (found[sequence] - logits).abs().max() < TOLERANCE, (name, number, sequence)
    for name, by_group in results.items():
        for ours, theirs in zip(by_group, results["scatter"], strict=True):
            for step, same in zip(ours, theirs, strict=True):
                for sequence, logits in step.items():
                    assert torch.equal(logits, same[sequence]), (name, sequence)


@pytest.mark.parametrize("rows", [0, 1, 3, 5, 7])
@pytest.mark.parametrize("loaded", [0, 1])
def test_any_rows_in_one_group_and_none_in_the_other(checkpoint: Checkpoint, rows: int, loaded: int) -> None:
    tokens = torch.arange(rows).tolist()
    expected = None
    if rows:
        expected = run_steps(whole_decoder(checkpoint, torch.float32), [[(tokens, 0, 0)]], own=(0,))[0][0]
    places = random_places(checkpoint, 2, seed=rows)

    def body(everyone: Group, own: Group) -> torch.Tensor:
        tensor = SoloGroup(everyone.ledger, everyone.rank)
        decoder = rank_decoder(checkpoint, torch.float32, everyone, Scatter, places, tensor=tensor)
        kv = KVCache(decoder.spec, num_rows=REACH, num_states=1, dtype=torch.float32)
        spans = [(tokens, 0, 0, 0)] if rows and everyone.rank == loaded else []
        return decoder.forward(Batch.build(spans), kv)

    found = run_groups(2, 1, body)
    for rank, logits in enumerate(found):
        assert logits.shape == (int(expected is not None and rank == loaded), 89)
    if expected is not None:
        assert (found[loaded][0] - expected).abs().max() < TOLERANCE
