"""A placement applied to ranks that run: the same tokens before, during and after, on all ranks or on none."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from smoe.collectives.group import Group, SoloGroup
from smoe.core.errors import CapacityError, CollectiveError, ConfigError, PlacementError, SmoeError
from smoe.core.parallel import ParallelConfig, ScheduleName
from smoe.core.placement import Placement
from smoe.core.placement_maps import diff
from smoe.core.step import ExpertsMoved
from smoe.engine.live_placement import LivePlacement
from smoe.engine.parallel import live_placement, load_part, make_schedule
from smoe.models.batch import Batch
from smoe.models.kv import KVCache
from smoe.models.loading import Checkpoint, open_checkpoint
from smoe.models.spec import DecoderSpec
from tests.collectives.placements import random_placement
from tests.collectives.thread_group import ThreadGroup, run_groups, run_ranks
from tests.models.parity import write_checkpoint
from tests.models.sharded import COMMON, FAMILIES, NUM_EXPERTS, whole_decoder
from tests.models.test_data_parallel import TOLERANCE

VOCAB, REACH, SEQUENCES, MOST_STEPS = COMMON["vocab_size"], 64, 3, 50
PROMPTS = ([1, 5, 9, 13, 2], [3], [7, 7, 40, 80, 21, 6, 4])
FOLLOWING = torch.randint(VOCAB, (MOST_STEPS, SEQUENCES), generator=torch.Generator().manual_seed(0)).tolist()
LARGE = 1 << 40


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def small_model(folder: Path, family: str, **options: Any) -> Checkpoint:
    name, own, how = FAMILIES[family]
    return open_checkpoint(write_checkpoint(AutoConfig.for_model(name, **(COMMON | own | options)), folder, **how))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return small_model(tmp_path_factory.mktemp("qwen3"), "qwen3-moe")


def placed(checkpoint: Checkpoint, devices: int, seed: int, *, fingerprint: str | None = None, tables: bool = True):
    return random_placement(
        seed,
        experts=NUM_EXPERTS,
        layers=checkpoint.spec.moe_layers,
        devices=devices,
        fingerprint=checkpoint.fingerprint if fingerprint is None else fingerprint,
        vocab=VOCAB - 9 if tables else None,
    )


class Rank:
    """One rank of the model in float32, and sequences that it computes with the ranks of its group."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        placement: Placement,
        everyone: Group,
        tensor: Group | None = None,
        *,
        schedule: ScheduleName = "scatter",
        room_bytes: int = LARGE,
        max_bytes: int = 5000,
    ) -> None:
        tensor = tensor or everyone
        tensor = SoloGroup(everyone.ledger, everyone.rank) if tensor.size == 1 else tensor
        parallel = ParallelConfig(
            tensor_parallel_size=tensor.size,
            data_parallel_size=everyone.size // tensor.size,
            schedule=schedule,
            placement="unread" if everyone.size > 1 else None,
        )
        part = load_part(checkpoint, everyone, placement, torch.float32, tensor)
        schedule_now = make_schedule(parallel, tensor, placement)
        bank, spread = part.bank(schedule_now), part.spread(schedule_now)
        self.decoder = part.decoder_of(bank, spread)
        self.live: LivePlacement = live_placement(checkpoint, parallel, part, bank, spread, room_bytes=room_bytes)
        self.live.max_bytes = max_bytes
        self.bank, self.spread, self.local = bank, spread, part.local
        self.kv = empty_kv(self.decoder.spec)

    def state(self) -> tuple[object, ...]:
        """All that a placement decides, by identity."""
        return self.live.placement, self.local.held, self.bank._expert2place, self.bank._schedule, self.spread._schedule


def forward(decoder: Any, kv: KVCache, tokens: Sequence[Sequence[int]], past: Sequence[int]) -> torch.Tensor:
    spans = [(list(t), i * REACH, p, i) for i, (t, p) in enumerate(zip(tokens, past, strict=True))]
    logits: torch.Tensor = decoder.forward(Batch.build(spans), kv)
    return logits


def prompts(rank: Rank) -> torch.Tensor:
    return forward(rank.decoder, rank.kv, PROMPTS, [0] * SEQUENCES)


def run(
    decoder: Any, kv: KVCache, steps: int, between: Callable[[int], None] = lambda step: None
) -> list[torch.Tensor]:
    """Logits of the prompts, then of `steps` steps of a token of each sequence, whatever the logits say."""
    tokens: Sequence[Sequence[int]] = PROMPTS
    past = [0] * SEQUENCES
    found = []
    for step in range(steps + 1):
        between(step)
        found.append(forward(decoder, kv, tokens, past))
        past = [p + len(t) for p, t in zip(past, tokens, strict=True)]
        tokens = [[token] for token in FOLLOWING[step % MOST_STEPS]]
    return found


def run_whole(checkpoint: Checkpoint, steps: int) -> list[torch.Tensor]:
    return run(whole_decoder(checkpoint, torch.float32), empty_kv(checkpoint.spec), steps)


def empty_kv(spec: DecoderSpec) -> KVCache:
    return KVCache(spec, num_rows=REACH * SEQUENCES, num_states=SEQUENCES, dtype=torch.float32)


@pytest.mark.parametrize(
    ("family", "size", "schedule", "steps"),
    [
        ("qwen3-moe", 2, "scatter", MOST_STEPS),
        ("qwen3-moe", 4, "speculative", 10),
        ("gpt-oss", 3, "allreduce", 10),  # experts with biases
        ("qwen3-next", 2, "speculative", MOST_STEPS),  # recurrent states, a shared expert
        ("deepseek-v3", 2, "scatter", 10),  # a dense layer first
    ],
)
def test_another_placement_at_every_step(
    tmp_path: Path, family: str, size: int, schedule: ScheduleName, steps: int
) -> None:
    checkpoint = small_model(tmp_path, family)
    expected = run_whole(checkpoint, steps)

    def body(group: Group) -> list[torch.Tensor]:
        rank = Rank(checkpoint, placed(checkpoint, size, 0), group, schedule=schedule)

        def move(step: int) -> None:
            before, after = rank.live.placement, placed(checkpoint, size, step + 1)
            assert isinstance(moved := rank.live.apply(after, "p"), ExpertsMoved)
            assert moved.experts == diff(before, after).fetched_by_device[group.rank]

        return run(rank.decoder, rank.kv, steps, move)

    for step, (ours, theirs) in enumerate(zip(run_ranks(size, body)[0], expected, strict=True)):
        assert (ours - theirs).abs().max() < TOLERANCE, step
        assert torch.equal(ours.argmax(1), theirs.argmax(1)), step


@pytest.mark.parametrize(("groups", "size"), [(2, 1), (3, 1), (2, 2)])
def test_groups_with_requests_of_their_own(checkpoint: Checkpoint, groups: int, size: int) -> None:
    devices, steps = groups * size, 10
    expected = run_whole(checkpoint, steps)

    def body(everyone: Group, own: Group) -> list[torch.Tensor]:
        schedule: ScheduleName = "speculative" if size > 1 else "scatter"
        rank = Rank(checkpoint, placed(checkpoint, devices, 99), everyone, own, schedule=schedule)

        def move(step: int) -> None:
            if step % 2:
                assert isinstance(rank.live.apply(placed(checkpoint, devices, step), "p"), ExpertsMoved)

        return run(rank.decoder, rank.kv, steps, move)

    for found in run_groups(groups, size, body)[::size]:
        for ours, theirs in zip(found, expected, strict=True):
            assert (ours - theirs).abs().max() < TOLERANCE


def test_with_one_expert_a_row_the_bits_are_those_of_never_moving(tmp_path: Path) -> None:
    """Where a row has several, ranks add up what each has of them: a placement decides what is rounded first."""
    checkpoint, size, steps = small_model(tmp_path, "qwen3-moe", num_experts_per_tok=1), 3, 10

    def body(group: Group, moves: bool) -> list[torch.Tensor]:
        rank = Rank(checkpoint, placed(checkpoint, size, 0), group)

        def move(step: int) -> None:
            if moves:
                assert isinstance(rank.live.apply(placed(checkpoint, size, step + 1), "p"), ExpertsMoved)

        return run(rank.decoder, rank.kv, steps, move)

    moved, stayed = (run_ranks(size, lambda group, m=m: body(group, m))[0] for m in (True, False))
    for ours, theirs in zip(moved, stayed, strict=True):
        assert torch.equal(ours, theirs)


def test_after_many_moves_all_is_as_if_loaded_so(checkpoint: Checkpoint) -> None:
    """Bit by bit: the weights, what they compute, the memory that they take, and where rows go."""
    size, last = 4, placed(checkpoint, 4, 77)

    def moved(group: ThreadGroup) -> Any:
        rank = Rank(checkpoint, placed(checkpoint, size, 0), group, schedule="speculative")
        for seed in (*range(1, 9), 77):
            assert isinstance(rank.live.apply(placed(checkpoint, size, seed), "p"), ExpertsMoved)
        for index, layer in enumerate(last.layers):
            for expert in last.on_device[index, :, group.rank].nonzero()[0].tolist():
                read = checkpoint.read_expert(layer, expert, dtype=torch.float32)
                for ours, theirs in zip(rank.local.held.tensors(layer, expert), read, strict=True):
                    assert theirs is None or torch.equal(ours, theirs)
        group.ledger.reset()
        return prompts(rank), rank.local.held.nbytes, group.ledger.all_traffic()

    def loaded(group: ThreadGroup) -> Any:
        rank = Rank(checkpoint, last, group, schedule="speculative")
        return prompts(rank), rank.local.held.nbytes, group.ledger.all_traffic()

    for (ours, *our_facts), (theirs, *their_facts) in zip(run_ranks(size, moved), run_ranks(size, loaded), strict=True):
        assert torch.equal(ours, theirs)
        assert our_facts == their_facts


def test_the_ledger_has_each_moved_byte_once(checkpoint: Checkpoint) -> None:
    size = 3
    before, after = placed(checkpoint, size, 5), placed(checkpoint, size, 6)
    expert_bytes = checkpoint.expert_source(0, 0).assembled_nbytes(torch.float32)
    change = diff(before, after, expert_bytes=expert_bytes)

    def body(group: ThreadGroup) -> tuple[Any, int, Any]:
        rank = Rank(checkpoint, before, group)
        group.ledger.reset()
        moved = rank.live.apply(after, "p")
        used = group.ledger.traffic("experts").wire
        return moved, used, (rank.live.apply(after, "p"), group.ledger.traffic("experts").wire - used)

    found = run_ranks(size, body)
    assert [moved.experts for moved, _, _ in found] == list(change.fetched_by_device)
    assert sum(moved.nbytes for moved, _, _ in found) == sum(used for _, used, _ in found) == change.bytes_moved > 0
    assert all(again == (ExpertsMoved(experts=0, nbytes=0), 0) for _, _, again in found)


Prepare = Callable[[Rank, ThreadGroup], None]


def refusals(
    checkpoint: Checkpoint,
    wanted: Placement,
    *,
    schedule: ScheduleName = "scatter",
    prepare: Prepare = lambda rank, group: None,
) -> list[SmoeError]:
    """What each of two ranks says, when all has stayed as it was and a good placement works afterwards."""

    def body(group: ThreadGroup) -> SmoeError:
        rank = Rank(checkpoint, placed(checkpoint, 2, 0), group, schedule=schedule)
        expected, before = prompts(rank), rank.state()
        undo = rank.live.empty, rank.live.room_bytes
        prepare(rank, group)
        found = rank.live.apply(wanted, "wanted")
        assert isinstance(found, SmoeError)
        assert all(now is then for now, then in zip(rank.state(), before, strict=True))
        assert group.ledger.traffic("experts").calls == 0
        assert torch.equal(prompts(rank), expected)
        rank.live.empty, rank.live.room_bytes = undo
        assert isinstance(rank.live.apply(placed(checkpoint, 2, 1), "good"), ExpertsMoved)
        return found

    found = run_ranks(2, body)
    assert len({(type(error), str(error)) for error in found}) == 1
    return found


def test_what_is_not_for_this_deployment_is_refused(checkpoint: Checkpoint) -> None:
    [error, _] = refusals(checkpoint, placed(checkpoint, 2, 1, fingerprint="other"))
    assert isinstance(error, PlacementError)
    assert str(error) == f"wanted: fingerprint: 'other' (the model's is {checkpoint.fingerprint!r})"
    [error, _] = refusals(checkpoint, placed(checkpoint, 3, 1))
    assert isinstance(error, ConfigError)
    assert str(error) == "placement: 'wanted' (2 devices; it was made for 3)"
    [error, _] = refusals(checkpoint, placed(checkpoint, 2, 1, tables=False), schedule="speculative")
    assert str(error) == "placement: 'wanted' (with token tables, for schedule speculative)"


def test_a_rank_without_room_keeps_all_as_they_are(checkpoint: Checkpoint) -> None:
    def no_room(rank: Rank, group: ThreadGroup) -> None:
        if group.rank == 1:
            rank.live.room_bytes = rank.local.held.nbytes + 100

    [error, _] = refusals(checkpoint, placed(checkpoint, 2, 1), prepare=no_room)
    assert isinstance(error, CapacityError)
    said = r"wanted: rank 1 gets experts of [\d,]+ bytes beside those that it has \(100 bytes are left\)"
    assert re.fullmatch(said, str(error))


def test_a_rank_that_cannot_make_ready_keeps_all_as_they_are(checkpoint: Checkpoint) -> None:
    def no_memory(rank: Rank, group: ThreadGroup) -> None:
        def fail(layer: int, expert: int) -> Any:
            raise MemoryError("no memory")

        if group.rank == 1:
            rank.live.empty = fail

    [error, _] = refusals(checkpoint, placed(checkpoint, 2, 1), prepare=no_memory)
    assert isinstance(error, PlacementError)
    assert str(error) == "wanted: rank 1 could not make ready for it (its log says why)"


@pytest.mark.parametrize("at", [0, 2])
def test_an_exchange_that_breaks_on_one_rank_switches_none(checkpoint: Checkpoint, at: int) -> None:
    """The ranks are lost then; what matters is that none has gone over to the new placement."""
    states: dict[int, bool] = {}

    class Broken(ThreadGroup):
        left = at

        def all_to_all(self, rows, send, receive, purpose):
            if purpose == "experts" and self.rank == 1:
                self.left -= 1
                if self.left < 0:
                    raise CollectiveError("experts over ranks [0, 1]: gone")
            return super().all_to_all(rows, send, receive, purpose)

    def body(group: ThreadGroup) -> None:
        rank = Rank(checkpoint, placed(checkpoint, 2, 0), Broken(group._world, group.rank, group.ledger))
        before = rank.state()
        try:
            rank.live.apply(placed(checkpoint, 2, 1), "p")
        finally:
            states[group.rank] = all(now is then for now, then in zip(rank.state(), before, strict=True))

    with pytest.raises(CollectiveError, match="gone"):
        run_ranks(2, body)
    assert states == {0: True, 1: True}
