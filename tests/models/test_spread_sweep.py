"""Rung D of the exactness ladder: any family over any ranks is the whole model, for any rows and any placement.

The whole product takes minutes and is marked slow; a sample of it runs always.
"""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoConfig

from smoe.collectives.group import Group, SoloGroup
from smoe.core.errors import ConfigError
from smoe.core.parallel import SCHEDULES, ParallelConfig
from smoe.core.placement import Placement
from smoe.core.placement_build import from_expert_device, with_replicas
from smoe.engine.parallel import load_part, make_schedule
from smoe.models.batch import Batch
from smoe.models.decoder import Decoder
from smoe.models.kv import KVCache
from smoe.models.loading import Checkpoint, open_checkpoint
from smoe.models.tensor_parallel import check_size
from tests.collectives.tables import make_tables
from tests.collectives.thread_group import run_groups
from tests.models.parity import write_checkpoint
from tests.models.sharded import COMMON, FAMILIES, whole_decoder

TOLERANCE = 1e-4  # max abs difference of logits in fp32, the project's promise
ROWS = (0, 1, 3, 5, 7, 64, 257)
SHAPES = [(1, 2), (2, 1), (4, 1), (2, 2), (4, 2), (2, 4)]  # (tensor, data) parallel
CASES = list(itertools.product(FAMILIES, SHAPES, (False, True)))
SAMPLE = 8


def _sampled() -> list[object]:
    """All cases, of which a few, the same always, are not slow: each family may be in any shape."""
    rng = np.random.default_rng(20)
    always = set(rng.choice(len(CASES), SAMPLE, replace=False).tolist())
    return [
        pytest.param(
            *case,
            marks=() if index in always else pytest.mark.slow,
            id=f"{case[0]}-tp{case[1][0]}-dp{case[1][1]}{'-replicas' if case[2] else ''}",
        )
        for index, case in enumerate(CASES)
    ]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {}


def checkpoint_of(family: str, folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    if family not in folders:
        name, options, how = FAMILIES[family]
        config = AutoConfig.for_model(name, **(COMMON | options))
        folders[family] = write_checkpoint(config, tmp_path_factory.mktemp(family), **how)
    return open_checkpoint(folders[family])


def random_placement(checkpoint: Checkpoint, devices: int, rng: np.random.Generator, *, replicas: bool) -> Placement:
    """Any expert anywhere, as many on a device as comes about but one at least; copies likewise."""
    spec = checkpoint.spec
    layers, experts = spec.moe_layers, spec.moe(spec.moe_layers[0]).router.num_experts
    slots = 1 + np.bincount(rng.integers(0, devices, experts - devices), minlength=devices)
    owner = np.repeat(np.arange(devices), slots)
    device = np.stack([rng.permutation(owner) for _ in layers]).astype(np.int16)
    tables = make_tables(devices, vocab=80, layers=len(layers), seed=int(rng.integers(100)))
    made = from_expert_device(device, slots.tolist(), fingerprint=checkpoint.fingerprint, layers=layers, tables=tables)
    if not replicas:
        return made
    counts = [int(rng.integers(0, experts - held + 1)) for held in slots]
    elsewhere = [[np.flatnonzero(row != g) for g in range(devices)] for row in device]
    return with_replicas(
        made,
        [[rng.permutation(e)[:n].tolist() for e, n in zip(of_layer, counts, strict=True)] for of_layer in elsewhere],
    )


def run_rows(decoder: Decoder, prompts: list[list[int]], rng_seed: int) -> list[torch.Tensor]:
    """The prompts of one group in one step, then a token of each: the logits of both steps."""
    reach = max((len(p) for p in prompts), default=0) + 1
    kv = KVCache(decoder.spec, num_rows=reach * max(1, len(prompts)), num_states=len(prompts) or 1, dtype=decoder.dtype)
    spans = [(tokens, i * reach, 0, i) for i, tokens in enumerate(prompts)]
    following = [([(7 * i + rng_seed) % 89], i * reach, len(tokens), i) for i, tokens in enumerate(prompts)]
    return [decoder.forward(Batch.build(spans), kv), decoder.forward(Batch.build(following), kv)]


def prompts_of(rows: int, rng: np.random.Generator) -> list[list[int]]:
    """So many rows in one sequence or two."""
    lengths = [rows] if rows < 4 else [rows // 3, rows - rows // 3]
    return [rng.integers(0, 89, n).tolist() for n in lengths if n]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("family", "shape", "replicas"), _sampled())
def test_ranks_compute_what_one_does(
    family: str,
    shape: tuple[int, int],
    replicas: bool,
    folders: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    torch.set_num_threads(1)
    size, groups = shape
    checkpoint = checkpoint_of(family, folders, tmp_path_factory)
    try:
        check_size(checkpoint.spec, size)
    except ConfigError:
        pytest.fail("heads of these models divide by 2 and 4")
    rng = np.random.default_rng([list(FAMILIES).index(family), size, groups, replicas])
    placement = random_placement(checkpoint, size * groups, rng, replicas=replicas)
    # Groups get unequal numbers of rows in a step, some of them none; every number comes first in one step.
    steps = [[prompts_of(ROWS[(i + 3 * g) % len(ROWS)], rng) for g in range(groups)] for i in range(len(ROWS))]
    whole = whole_decoder(checkpoint, torch.float32)
    nothing = [torch.empty(0, 89)] * 2
    expected = [[run_rows(whole, p, i) if p else nothing for p in step] for i, step in enumerate(steps)]

    def body(everyone: Group, own: Group) -> dict[str, list[list[torch.Tensor]]]:
        tensor = SoloGroup(everyone.ledger, everyone.rank) if size == 1 else own
        part = load_part(checkpoint, everyone, placement, torch.float32, tensor)
        found = {}
        for schedule in SCHEDULES if size > 1 else ("scatter",):
            parallel = ParallelConfig(
                tensor_parallel_size=size, data_parallel_size=groups, schedule=schedule, placement="unread"
            )
            decoder, _ = part.decoder(make_schedule(parallel, tensor, placement))
            group = everyone.rank // size
            found[schedule] = [run_rows(decoder, step[group], i) for i, step in enumerate(steps)]
        return found

    by_group = run_groups(groups, size, body)[::size]
    for group, found in enumerate(by_group):
        for number, wanted in enumerate(expected):
            for part, logits in enumerate(wanted[group]):
                for schedule, steps_found in found.items():
                    ours = steps_found[number][part]
                    assert ours.shape == logits.shape, (schedule, group, number, part)
                    if len(ours):
                        assert (ours - logits).abs().max() < TOLERANCE, (schedule, group, number, part)
                    # With copies it depends on a row's rank which one computes an expert, and so what is summed there.
                    if not replicas:
                        assert torch.equal(ours, found["scatter"][number][part]), (schedule, group, number, part)
