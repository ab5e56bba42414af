"""Placements applied to two shards while they answer: the tokens of one process, also after one was killed."""

from pathlib import Path

import pytest

from smoe.core.config import EngineConfig
from smoe.core.errors import ConfigError, PlacementError
from smoe.core.placement_file import write_placement
from smoe.core.step import ExpertsMoved
from smoe.engine.build import build_local_client
from smoe.models.loading import Checkpoint, open_checkpoint
from tests.actors.test_parallel import answers, answers_after_a_loss, config, opened
from tests.collectives.placements import random_placement

pytestmark = [pytest.mark.ray, pytest.mark.xdist_group("ray")]

MAX_TOKENS = 64


def write(folder: Path, checkpoint: Checkpoint, seed: int, *, devices: int = 2, fingerprint: str | None = None) -> str:
    spec = checkpoint.spec
    placement = random_placement(
        seed,
        experts=spec.moe(spec.moe_layers[0]).router.num_experts,
        layers=spec.moe_layers,
        devices=devices,
        fingerprint=fingerprint or checkpoint.fingerprint,
        vocab=spec.vocab,
    )
    write_placement(folder, placement)
    return str(folder)


@pytest.mark.usefixtures("local_ray")
def test_placements_change_while_requests_are_answered(tmp_path: Path) -> None:
    checkpoint = open_checkpoint("builtin")
    folders = [write(tmp_path / str(seed), checkpoint, seed) for seed in range(4)]
    other = write(tmp_path / "other", checkpoint, 0, fingerprint="other")
    three = write(tmp_path / "three", checkpoint, 0, devices=3)
    local = build_local_client(EngineConfig(dtype="float32", max_model_len=256, threads=1))
    try:
        expected = answers(local, MAX_TOKENS)
    finally:
        local.shutdown()
    waiting, applied = [1, 2, 3, 1, 2], [0]
    running: list[int] = []
    with opened(config(schedule="speculative", placement=folders[0])) as client:

        def move(found: dict[str, tuple[int, ...]]) -> None:
            if not waiting:
                return
            applied.append(waiting.pop(0))
            moved = client.apply_placement(folders[applied[-1]])
            assert min(moved.experts, moved.nbytes) > 0
            running.append(client.stats().running)
            with pytest.raises(PlacementError, match=r"other: fingerprint: 'other' \(the model's is "):
                client.apply_placement(other)
            with pytest.raises(ConfigError, match=r"^placement: '.*three' \(2 devices; it was made for 3\)$"):
                client.apply_placement(three)

        assert answers(client, MAX_TOKENS, move) == expected
        assert sum(count > 0 for count in running) >= 2, "requests were to be in flight"
        last = folders[applied[-1]]
        assert client.apply_placement(last) == ExpertsMoved(experts=0, nbytes=0)
        # Shards that replace lost ones load what they are configured with, and get this one again.
        answers_after_a_loss(client, any)
        assert client.state().generation == 2
        assert client.apply_placement(last) == ExpertsMoved(experts=0, nbytes=0)
        assert answers(client, MAX_TOKENS) == expected
