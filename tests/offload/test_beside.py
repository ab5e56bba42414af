"""What a layer computes beside its routed experts happens while their bytes come."""

from dataclasses import replace

import pytest
import torch

from smoe.kernels import RMSNorm
from smoe.models.batch import Batch, StepContext
from smoe.models.mlp import MoEBlock
from tests.offload.stores import GatedStore
from tests.offload.support import ExpertFiles, apply, random_calls

ROWS = 3


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return ExpertFiles(tmp_path_factory.mktemp("experts"))


def test_misses_are_begun_before_the_residual_is_asked_for_and_awaited_after(files):
    store = GatedStore(lambda key: True)
    bank = files.offloaded(torch.float32, 5, over=store)
    call, resident = random_calls(files, torch.float32, [ROWS])[0], files.resident(torch.float32)
    wanted = {(call.layer, expert) for expert in call.ids_TK.unique().tolist()}
    begun = []

    def residual():
        begun.append(set(store.submitted))
        store.release()
        return call.residual_TD

    found = bank.apply_beside(call.rows, residual)
    assert torch.equal(found, apply(resident, call))
    assert len(begun) == 1
    assert begun[0]
    assert begun[0] <= wanted
    assert len(begun[0]) == min(5, len(wanted))
    bank.close()


@pytest.mark.parametrize("rows", [1, ROWS])
def test_hits_alone_ask_for_the_residual_once(files, rows):
    bank, resident = files.offloaded(torch.float32, 7), files.resident(torch.float32)
    call = random_calls(files, torch.float32, [rows])[0]
    apply(bank, call)
    asked = []

    def residual():
        asked.append(0)
        return call.residual_TD

    found = bank.apply_beside(call.rows, residual)
    assert torch.equal(found, apply(resident, call))
    assert len(asked) == 1
    assert bank.stats().misses == bank.stats().hits
    bank.close()


def test_a_shared_expert_is_computed_while_misses_are_under_way(files):
    layer, hidden = files.moe_layers[0], files.hidden
    spec = replace(files.spec.moe(layer), shared_ffn=8)
    generator = torch.Generator().manual_seed(1)
    shapes = {"router.weight": (files.num_experts, hidden), "shared.down.weight": (hidden, 8)}
    shapes |= {f"shared.{part}.weight": (8, hidden) for part in ("gate", "up")}
    params = {f"moe.{name}": torch.randn(shape, generator=generator) / 6 for name, shape in shapes.items()}
    norm = RMSNorm(torch.ones(hidden), 1e-6)
    store = GatedStore(lambda key: True)
    bank = files.offloaded(torch.float32, 7, over=store)
    block = MoEBlock(spec, layer, params, "moe", norm, bank)
    x_TD, context = torch.randn(ROWS, hidden, generator=generator), StepContext(Batch.build([([0] * ROWS, 0, 0, 0)]))
    events, shared = [], block._shared

    def noted(*args):
        events.append(len(store.submitted))
        store.release()
        return shared(*args)

    block._shared = noted
    found = block(x_TD, context)
    assert events
    assert events[0] >= files.top_k, "every expert of the layer has been asked for"
    expected = MoEBlock(spec, layer, params, "moe", norm, files.resident(torch.float32))(x_TD, context)
    assert torch.equal(found, expected)
    bank.close()
