"""A model cut over ranks computes what the whole one does: every family, sizes, schedules, placements of experts."""

import os
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig

from smoe.collectives.schedules.plain import AllReduce, Scatter
from smoe.collectives.schedules.speculative import Speculative
from smoe.core.errors import ConfigError
from smoe.models.loading import open_checkpoint
from smoe.models.tensor_parallel import TensorShare, check_size
from tests.collectives.tables import make_tables
from tests.collectives.thread_group import run_ranks
from tests.models.parity import write_checkpoint
from tests.models.sharded import COMMON, FAMILIES, random_places, rank_decoder, run, whole_decoder

TOLERANCE = 1e-4  # max abs difference of logits in fp32, the project's promise


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    name, options, how = FAMILIES[request.param]
    config = AutoConfig.for_model(name, **(COMMON | options))
    return write_checkpoint(config, tmp_path_factory.mktemp(request.param), **how)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_every_family_over_ranks_is_the_whole_model(folder: Path, size: int) -> None:
    """Prompts of unequal length in one batch, then single tokens: fewer rows than ranks among them."""
    checkpoint = open_checkpoint(folder)
    if size == 3 and checkpoint.spec.family == "olmoe":
        with pytest.raises(ConfigError, match="one of 1, 2, 4, 8, by the heads"):  # its norm goes over all heads
            check_size(checkpoint.spec, size)
        return
    generator = torch.Generator().manual_seed(size)
    prompts = [torch.randint(89, (n,), generator=generator).tolist() for n in (7, 1, 5)]
    tokens = [torch.randint(89, (6,), generator=generator).tolist() for _ in prompts]
    expected = run(whole_decoder(checkpoint, torch.float32), prompts, tokens)
    places = random_places(checkpoint, size, seed=3)
    layers = checkpoint.spec.moe_layers
    tables = make_tables(size, seed=size, vocab=89, layers=len(layers))
    schedules = {
        "allreduce without dedup": (AllReduce, False),
        "allreduce": (AllReduce, True),
        "scatter": (Scatter, True),
        "speculative": (lambda group: Speculative(group, tables, layers), True),
        "speculative, ragged": (lambda group: Speculative(group, tables, layers, capacity_factor=2.0), True),
    }
    results = {}
    for name, (make, dedup) in schedules.items():

        def body(group, make=make, dedup=dedup):
            return run(rank_decoder(checkpoint, torch.float32, group, make, places, dedup=dedup), prompts, tokens)

        results[name] = run_ranks(size, body)[0]
        for ours, theirs in zip(results[name], expected, strict=True):
            assert (ours - theirs).abs().max() < TOLERANCE, name
    for name in ("allreduce", "speculative", "speculative, ragged"):
        for ours, theirs in zip(results["scatter"], results[name], strict=True):
            assert torch.equal(ours, theirs), name  # the same sums in the same order, whoever works on a row


def test_parts_of_all_ranks_make_the_whole(folder: Path) -> None:
    """Every number of every parameter is on a rank; those that only one rank holds are on one."""
    checkpoint = open_checkpoint(folder)
    whole = checkpoint.params(dtype=torch.float32)
    shares = [TensorShare(checkpoint.spec, rank, 2) for rank in range(2)]
    parts = [checkpoint.params(dtype=torch.float32, part=share.cut) for share in shares]
    for name, tensor in whole.items():
        held = [part[name] for part in parts if name in part]
        if all(part.shape == tensor.shape for part in held):
            continue
        total = torch.cat([part.flatten() for part in held]).sort().values
        assert torch.equal(total, tensor.flatten().sort().values), name


@pytest.mark.parametrize("size", [2, 4])
def test_a_rank_reads_its_own_rows_and_columns_alone(folder: Path, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In whatever order a file has them: by heads, in pairs, gates beside queries."""
    checkpoint, whole_bytes = open_checkpoint(folder), 0
    counted, preadv = [0], os.preadv

    def counting(fd: int, buffers: list, offset: int) -> int:
        count = preadv(fd, buffers, offset)
        counted[0] += count
        return count

    monkeypatch.setattr(os, "preadv", counting)
    checkpoint.params(dtype=torch.float32)
    whole_bytes, counted[0] = counted[0], 0
    for rank in range(size):
        share = TensorShare(checkpoint.spec, rank, size)
        kept = checkpoint.params(dtype=torch.float32, part=share.cut)
        assert counted[0] == sum(tensor.nbytes for tensor in kept.values())
        assert counted[0] == checkpoint.params_nbytes(dtype=torch.float32, part=share.cut) < whole_bytes
        counted[0] = 0


def test_a_size_that_does_not_divide_the_heads_names_the_legal_ones(tmp_path: Path) -> None:
    folder = write_checkpoint(AutoConfig.for_model("qwen3_moe", **(COMMON | FAMILIES["qwen3-moe"][1])), tmp_path)
    spec = open_checkpoint(folder).spec
    for size in range(1, 9):
        check_size(spec, size)
    for size in (0, 9, 16):
        with pytest.raises(ConfigError, match=rf"tensor_parallel_size: {size} \(one of 1, 2, 3, 4, 5, 6, 7, 8, by the"):
            check_size(spec, size)
