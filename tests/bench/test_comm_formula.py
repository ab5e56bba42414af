"""What ledgers count equals what the formulas say, for every case, to the byte."""

from functools import partial

import numpy as np
import pytest
import torch

from smoe.bench.comm.cases import BASE, BEST, CASES, DEDUP, Case
from smoe.bench.comm.formula import PURPOSES, by_formula
from smoe.bench.comm.replay import Learn, Replay, best_order
from smoe.collectives.group import Group
from smoe.collectives.schedules.plain import AllReduce, Scatter
from smoe.collectives.schedules.protocol import Schedule
from smoe.collectives.schedules.speculative import Speculative
from smoe.core.placement import Placement
from smoe.core.placement_build import from_expert_device
from smoe.engine.parallel import load_part
from smoe.models.batch import Batch
from smoe.models.kv import KVCache
from smoe.models.loading import Checkpoint, open_checkpoint
from tests.collectives.tables import make_tables
from tests.collectives.thread_group import run_ranks

RANKS = 3
TOKENS = tuple(range(40, 40 + 21))


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return open_checkpoint("builtin")


@pytest.fixture(scope="module")
def placement(checkpoint: Checkpoint) -> Placement:
    layers = checkpoint.spec.moe_layers
    experts = checkpoint.spec.moe(layers[0]).router.num_experts
    rng = np.random.default_rng(1)
    slots = (22, 21, 21)
    device = np.stack([rng.permutation(np.repeat(range(RANKS), slots)) for _ in layers]).astype(np.int16)
    assert device.shape[1] == experts
    tables = make_tables(RANKS, vocab=checkpoint.spec.vocab, layers=len(layers))
    return from_expert_device(device, slots, fingerprint=checkpoint.fingerprint, layers=layers, tables=tables)


def schedule(case: Case, group: Group, placement: Placement) -> Schedule:
    if case.schedule == "speculative":
        assert placement.tables is not None
        return Speculative(group, placement.tables, placement.layers, capacity_factor=case.capacity_factor)
    return {"allreduce": AllReduce, "scatter": Scatter, "oracle": Replay}[case.schedule](group)


def one_pass(group: Group, *, checkpoint: Checkpoint, placement: Placement, case: Case) -> tuple[dict, dict]:
    torch.set_num_threads(1)
    part = load_part(checkpoint, group, placement, torch.float32)
    kv = KVCache(part.share.local_spec(), num_rows=len(TOKENS), num_states=1, dtype=torch.float32)
    chosen = schedule(case, group, placement)
    span = (TOKENS, 0, 0, 0)
    with torch.inference_mode():
        if isinstance(chosen, Replay):
            learn = Learn(group)
            part.decoder(learn)[0].forward(Batch.build([span]), kv)
            chosen.orders = learn.orders
        group.ledger.reset()
        ids: dict[int, np.ndarray] = {}

        def sink(layer: int, ids_TK: torch.Tensor, *_: torch.Tensor) -> None:
            ids[layer] = ids_TK.numpy().astype(np.int16)

        part.decoder(chosen, dedup=case.dedup)[0].forward(Batch.build([span], route_sink=sink), kv)
    return ids, group.ledger.all_traffic()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_ledgers_equal_the_formula(case: Case, checkpoint: Checkpoint, placement: Placement) -> None:
    answers = run_ranks(RANKS, partial(one_pass, checkpoint=checkpoint, placement=placement, case=case))
    spec = checkpoint.spec
    found = by_formula(case, placement, [ids for ids, _ in answers], spec.hidden, 4)
    layers = len(placement.layers)
    for purpose in PURPOSES:
        counted = sum(traffic[purpose].wire for _, traffic in answers)
        assert counted == pytest.approx(found.wire[purpose] * layers, abs=0.5), purpose
    top_k = spec.moe(0).router.top_k
    if not case.dedup:
        assert found.rows == pytest.approx(top_k * len(TOKENS) * (1 - found.lar))
        rings = 3 * (RANKS - 1) * len(TOKENS)
        assert found.hidden_only == pytest.approx((rings + 2 * found.rows) * spec.hidden * 4)


def test_deduplication_and_the_order_of_an_all_reduce_cost_what_they_should(placement: Placement) -> None:
    rng = np.random.default_rng(0)
    ids = [{layer: rng.integers(0, 64, (7, 8)).astype(np.int16) for layer in placement.layers} for _ in range(RANKS)]
    base, dedup, best = (by_formula(case, placement, ids, 16, 2) for case in (BASE, DEDUP, BEST))
    ring = (RANKS - 1) * 7 * RANKS * 16 * 2
    assert (base.wire["reduce"], dedup.wire["reduce"], best.wire["reduce"]) == (2 * ring, 2 * ring, ring)
    assert base.rows > dedup.rows == best.rows
    assert best.wire["gather"] - ring == (RANKS - 1) * 7 * RANKS * 2


def test_the_oracle_sends_rows_where_most_of_their_experts_are() -> None:
    device_TK = torch.tensor([[0, 0, 1], [1, 1, 1], [1, 1, 0], [0, 1, 1]])
    order = best_order(device_TK, 2)
    assert order.counts == (2, 2)
    assert order.order_T is not None
    # Row 1 is surest of rank 1; of rows 2 and 3 the first stays, the other spills to where one of its experts is.
    assert order.order_T.tolist() == [0, 3, 1, 2]
