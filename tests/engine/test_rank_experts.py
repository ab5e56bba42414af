"""Ranks that keep a part of their experts in slots compute what ranks with all of them in memory do."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from smoe.collectives.group import Group, SoloGroup
from smoe.core.config import EngineConfig
from smoe.core.errors import ConfigError, StoreError
from smoe.core.parallel import ParallelConfig, ScheduleName
from smoe.engine.parallel import check_parallel, load_part, make_schedule
from smoe.engine.plan_devices import plan_devices
from smoe.engine.rank_experts import open_experts, rank_tiers, slots_of_ranks
from smoe.models.bank import RoutedRows
from smoe.models.batch import Batch
from smoe.models.kv import KVCache
from smoe.models.loading import Checkpoint, open_checkpoint
from smoe.offload.bank import OffloadedBank
from smoe.offload.rank_bank import RankOffloadedBank
from tests.collectives.thread_group import run_groups
from tests.engine.test_rank_part import uneven
from tests.models.test_data_parallel import random_steps, run_steps

DTYPE = torch.float32
MEMBERS = ((0, 2), (1, 3))


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return open_checkpoint("builtin")


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def config(schedule: ScheduleName = "scatter", **values: str) -> EngineConfig:
    parallel = ParallelConfig(tensor_parallel_size=2, data_parallel_size=2, schedule=schedule, placement="unread")
    return EngineConfig(dtype="float32", parallel=parallel, **values)  # type: ignore[arg-type]


def open_rank(checkpoint: Checkpoint, config: EngineConfig, placement, everyone: Group, own: Group):
    def experts(dense_bytes: int):
        return open_experts(checkpoint, config, placement, everyone, DTYPE, free_bytes=1 << 40, auto_bytes=1 << 40)

    return load_part(checkpoint, everyone, placement, DTYPE, own, experts)


def run_ranks_of(checkpoint: Checkpoint, config: EngineConfig, copies: int):
    """(by rank, by step: logits by sequence), (by rank: counts)."""
    steps, placement = random_steps(4, seed=11), uneven(checkpoint, 4, copies)

    def body(everyone: Group, own: Group):
        part = open_rank(checkpoint, config, placement, everyone, own)
        bank = part.experts.bank
        try:
            decoder, _ = part.decoder(make_schedule(config.parallel, own, placement))
            found = run_steps(decoder, steps, own=MEMBERS[everyone.rank // 2])
            bank.check_integrity()
            return found, bank.stats(), type(bank)
        finally:
            bank.close()

    return run_groups(2, 2, body)


@pytest.mark.parametrize(
    ("schedule", "copies", "values"),
    [
        ("scatter", 3, {"expert_memory": "25%"}),
        ("speculative", 0, {"expert_memory": "8"}),
        ("allreduce", 0, {"expert_memory": "30%", "expert_policy": "evict=utility:mass,miss=wait"}),
        ("scatter", 3, {"expert_memory": "25%", "expert_tier": "host", "expert_policy": "miss=compute"}),
        ("speculative", 3, {"expert_memory": "25%", "expert_tier": "host:4MB", "expert_policy": "miss=auto"}),
    ],
)
def test_ranks_with_experts_in_slots_give_the_bits_of_resident_ones(
    checkpoint: Checkpoint, schedule: ScheduleName, copies: int, values: dict[str, str]
) -> None:
    resident = run_ranks_of(checkpoint, config(schedule), copies)
    slots = run_ranks_of(checkpoint, config(schedule, **values), copies)
    for (ours, stats, kind), (theirs, _, _) in zip(slots, resident, strict=True):
        assert kind is RankOffloadedBank
        for step, same in zip(ours, theirs, strict=True):
            assert step.keys() == same.keys()
            assert all(torch.equal(logits, same[sequence]) for sequence, logits in step.items())
        assert stats.hits + stats.late + stats.misses > 0
        assert stats.bytes_moved > 0 or stats.computed_in_place > 0
    assert sum(stats.misses for _, stats, _ in slots) > 0


@pytest.mark.parametrize("schedule", ["scatter", "speculative"])
def test_what_is_replaced_is_said_by_row_and_adds_up(checkpoint: Checkpoint, schedule: ScheduleName) -> None:
    placement, rows = uneven(checkpoint, 4, 3), 9
    lossy = config(schedule, expert_memory="25%", expert_policy="evict=lru,miss=substitute:all")

    def body(everyone: Group, own: Group):
        part = open_rank(checkpoint, lossy, placement, everyone, own)
        try:
            decoder, bank = part.decoder(make_schedule(lossy.parallel, own, placement))
            kv = KVCache(decoder.spec, num_rows=16, num_states=1, dtype=DTYPE)
            group = everyone.rank // 2
            tokens = [(5 * i + 40 * group) % 80 for i in range(rows)]
            said = np.zeros((rows, 2))
            for _ in range(2):  # the first finds nothing resident to stand in
                logits = decoder.forward(Batch.build([(tokens, 0, 0, 0)]), kv)
                assert logits.isfinite().all()
                if (found := bank.substitutions()) is not None:
                    said += np.stack(found, axis=1)
            return said, part.experts.bank.stats()
        finally:
            part.experts.bank.close()

    found = run_groups(2, 2, body)
    said = sum(said.sum(0) for said, _ in found)
    assert said[0] == sum(stats.substituted for _, stats in found) > 0
    assert said[1] == pytest.approx(sum(stats.substituted_mass for _, stats in found), rel=1e-5)
    assert all((said[:, 0] > 0).any() for said, _ in found)


def test_a_row_is_never_given_an_expert_that_it_has_anyway(checkpoint: Checkpoint) -> None:
    """With copies of experts on several ranks, what is resident here may be computed for the row there."""
    placement = uneven(checkpoint, 4, 3)
    lossy = config(expert_memory="30%", expert_policy="evict=lru,miss=substitute:all")
    chosen: dict[bytes, set[int]] = {}

    def body(everyone: Group, own: Group):
        part = open_rank(checkpoint, lossy, placement, everyone, own)
        local = part.experts.bank
        decoder, bank = part.decoder(make_schedule(lossy.parallel, own, placement))
        widen, replace_rows, stand_ins = bank._informed.widen, local._routings.replace, []

        def widening(x_RD, ids_RK, *rest):
            chosen.update((x.numpy().tobytes(), set(ids.tolist())) for x, ids in zip(x_RD, ids_RK, strict=True))
            return widen(x_RD, ids_RK, *rest)

        def replacing(rows, decision):
            for x, here, now in zip(rows.x_TD, rows.ids_TK.tolist(), decision.ids.tolist(), strict=True):
                stand_ins.extend((e, chosen[x.numpy().tobytes()]) for e in now if e >= 0 and e not in here)
            return replace_rows(rows, decision)

        bank._informed.widen, local._routings.replace = widening, replacing
        try:
            run_steps(decoder, random_steps(4, seed=2), own=MEMBERS[everyone.rank // 2])
            return stand_ins
        finally:
            local.close()

    found = [pair for pairs in run_groups(2, 2, body) for pair in pairs]
    assert len(found) > 20
    assert not any(expert in everywhere for expert, everywhere in found)


def test_rows_whose_experts_cannot_be_read_are_not_numbers(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other rows are what they would have been, also to the bit, and the first cause is kept for one forward."""
    broken, placement = 7, uneven(checkpoint, 2, 0)
    layer, group = placement.layers[0], SoloGroup()
    everything = config(expert_memory="99%")
    whole = replace(placement, slots_of_device=(64,), slot2expert=np.tile(np.arange(64, dtype=np.int32), (6, 1)))
    bank = open_rank(checkpoint, everything, whole, group, group).experts.bank
    generator = torch.Generator().manual_seed(0)
    hidden = checkpoint.spec.hidden
    x_TD = torch.randn(5, hidden, generator=generator)
    ids_TK = torch.tensor([[1, 2, -1], [7, -1, 3], [-1, -1, 4], [5, 9, 7], [8, 6, 2]], dtype=torch.int32)
    weights_TK = torch.rand(5, 3, generator=generator)
    arguments = (RoutedRows(layer, x_TD, ids_TK, weights_TK), torch.zeros(5, hidden))
    bank.begin_forward(torch.arange(5))
    expected = bank.apply(*arguments)
    sound = OffloadedBank.apply

    def failing(self, rows, residual_TD):
        if (rows.ids_TK == broken).any():
            raise StoreError("model.safetensors: reading 12 bytes at offset 3: gone")
        return sound(self, rows, residual_TD)

    monkeypatch.setattr(OffloadedBank, "apply", failing)
    assert bank.last_unread() is None
    found = bank.apply(*arguments)
    needs = (ids_TK == broken).any(1)
    assert found[needs].isnan().all()
    assert torch.equal(found[~needs], expected[~needs])
    assert "offset 3: gone" in str(bank.last_unread())
    bank.begin_forward(torch.arange(5))
    assert bank.last_unread() is None
    bank.close()


def test_budgets_are_split_by_the_experts_that_ranks_hold(checkpoint: Checkpoint) -> None:
    placement = uneven(checkpoint, 4, 3)
    held, layers = placement.slots_of_device, len(placement.layers)
    assert len(set(held)) > 1
    total = sum(held)
    tiers = rank_tiers(checkpoint, config(expert_memory="25%"), placement, 3, DTYPE)
    shelf = tiers.above
    assert shelf.num_experts == held[3] * layers
    assert slots_of_ranks(shelf, placement, "50%", "f") == [h * layers // 2 for h in held]
    assert slots_of_ranks(shelf, placement, "20", "f") == [min(20 * layers * h // total, h * layers) for h in held]
    nbytes = 3_000_000
    expected = [int(nbytes * h / total) // shelf.slot_bytes for h in held]
    found = slots_of_ranks(shelf, placement, f"{nbytes}B", "f")
    assert found == expected
    assert sum(found) * shelf.slot_bytes <= nbytes
    with pytest.raises(
        ConfigError, match=r"^expert_memory: '1' \(for the share of rank 0, .*at least one expert a layer"
    ):
        slots_of_ranks(shelf, placement, "1", "expert_memory")


def test_resizing_is_for_all_ranks_or_none(checkpoint: Checkpoint) -> None:
    placement = uneven(checkpoint, 4, 0)
    wanted = config(expert_memory="25%", expert_memory_max="50%")

    def body(everyone: Group, own: Group):
        part = open_rank(checkpoint, wanted, placement, everyone, own)
        resize, bank = part.experts.resize, part.experts.bank
        assert resize is not None
        answers = []
        for memory in ("50%", "51%", "1", "25%", "auto"):
            try:
                answers.append(resize(memory))
            except ConfigError as error:
                answers.append(str(error))
            answers.append(bank.stats().budget_bytes)
        bank.close()
        return answers

    found = run_groups(2, 2, body)
    for answers in zip(*found, strict=True):
        told = {str(a) for a in answers}
        assert len(told) == 1 or all(isinstance(a, int) and a > 1000 for a in answers)
    first = found[0]
    assert isinstance(first[0], int)
    assert first[1] == first[3] == first[5] > first[7]
    assert "up to expert_memory_max" in first[2]
    assert "share of rank 0" in first[4]
    assert "a size" in first[8]


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({"record_routes": "r"}, r"^record_routes: 'r' \(none on several devices"),
        ({"expert_policy": "prefetch=gate"}, r"^policies\.prefetch: 'gate' \(none on several devices"),
        ({"expert_policy": "prefetch=follow"}, r"^policies\.prefetch: 'follow' \(none on several"),
        ({"expert_policy": "miss=substitute:own"}, r"^policies\.miss\.substitute\.weight: 'own' \(inherit on several"),
        ({"expert_policy": "miss=compute"}, r"^policies\.miss: 'compute' \(experts are kept in disk"),
        ({"expert_memory": "1"}, r"^expert_memory: '1' \(for the share of rank 0"),
        ({"expert_memory_max": "1"}, r"^expert_memory_max: '1' \(for the share of rank 0"),
    ],
)
def test_what_cannot_work_is_said_before_any_rank_starts(
    checkpoint: Checkpoint, values: dict[str, object], match: str
) -> None:
    parallel = ParallelConfig(tensor_parallel_size=2, data_parallel_size=2)
    wrong = EngineConfig(dtype="float32", parallel=parallel, **{"expert_memory": "25%", **values})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=match):
        check_parallel(checkpoint, wrong)


@pytest.mark.parametrize("memory", ["all", "25%"])
def test_a_plan_of_devices_is_what_they_then_hold(checkpoint: Checkpoint, memory: str) -> None:
    wanted = EngineConfig(
        dtype="float32", expert_memory=memory, parallel=ParallelConfig(tensor_parallel_size=2, data_parallel_size=2)
    )
    placement, plans = check_parallel(checkpoint, wanted), plan_devices(checkpoint, wanted)

    def body(everyone: Group, own: Group):
        part = open_rank(checkpoint, wanted, placement, everyone, own)
        part.experts.bank.close()
        kv = KVCache(part.share.local_spec(), num_rows=8, num_states=1, dtype=DTYPE)
        row_bytes = sum(c.first.nbytes + c.second.nbytes for c in kv.layers) / 8
        return part.dense_bytes, part.experts.nbytes, row_bytes

    for plan, (dense, experts, row_bytes) in zip(plans, run_groups(2, 2, body), strict=True):
        assert plan.attention_bytes + plan.vocabulary_bytes + plan.other_bytes == dense
        assert plan.experts_bytes == experts
        assert plan.kv_bytes == plan.kv_rows * row_bytes
        assert plan.experts == 6 * 16
        assert plan.expert_slots == (24 if memory == "25%" else 96)
    assert [plan.group for plan in plans] == [0, 0, 1, 1]
