"""Retrying a step whose experts could not be read, on a decoder with a recurrent state."""

from dataclasses import replace

import pytest
import torch

from smoe.core.errors import StoreError
from smoe.core.sampling import SamplingParams
from smoe.core.step import SpanPlan, StepPlan
from smoe.engine.runner import Runner
from smoe.models.bank import ResidentBank
from smoe.models.batch import Batch
from smoe.models.kv import KVCache
from smoe.models.spec import DecoderSpec, DeltaSpec, DenseSpec, LayerSpec
from tests.engine.fakes import INFO, FakeBank

DELTA = DeltaSpec(num_key_heads=1, num_value_heads=1, key_head_dim=1, value_head_dim=1, conv_kernel=2)
SPEC = DecoderSpec(
    family="fake",
    hidden=1,
    vocab=32,
    layers=(LayerSpec(attention=DELTA, mlp=DenseSpec(ffn=1)),),
    norm="rms",
    norm_eps=1e-6,
    tied_head=True,
    max_positions=64,
)
LOST = 31


class Summing:
    """Chooses (sum of all tokens so far) % 32, kept as a running state that it updates before it may fail."""

    spec = SPEC

    def forward(self, batch: Batch, kv: KVCache) -> torch.Tensor:
        state_S = kv.layers[0].second.view(-1)
        for (first, count, _, past), slot in zip(batch.rows.spans, batch.state_slots, strict=True):
            new = batch.token_ids_T[first : first + count].sum()
            state_S[slot] = new + (state_S[slot] if past else 0)
        if LOST in batch.token_ids_T.tolist():
            raise StoreError("lost")
        owner = [
            s for (_, count, _, _), s in zip(batch.rows.spans, batch.state_slots, strict=True) for _ in range(count)
        ]
        slots = [owner[row] for row in batch.logit_rows_M.tolist()]
        return torch.nn.functional.one_hot(state_S[slots].long() % 32, 32).float()


def span(name: str, slot: int, past: int, token_ids: tuple[int, ...], sample: bool = True) -> SpanPlan:
    return SpanPlan(
        request_id=name,
        state_slot=slot,
        kv_start=16 * slot,
        past=past,
        token_ids=token_ids,
        sample=SamplingParams() if sample else None,
    )


def make() -> Runner:
    kv = KVCache(SPEC, num_rows=64, num_states=4, dtype=torch.float32)
    kv.layers[0].second.fill_(float("nan"))
    return Runner(Summing(), kv, FakeBank(), INFO)  # type: ignore[arg-type]


def test_states_are_as_before_the_step_that_failed() -> None:
    runner = make()
    runner.execute(StepPlan(spans=(span("a", 0, 0, (3, 4)), span("b", 2, 0, (5,)))))
    result = runner.execute(
        StepPlan(spans=(span("a", 0, 2, (1,)), span("lost", 1, 0, (LOST,)), span("b", 2, 1, (2, 2)))),
    )
    (a,), (lost,), (b,) = result.tokens
    assert (a.token_id, b.token_id) == (8, 9)
    assert (lost.token_id, lost.error) == (None, "store: lost")
    after = runner.execute(StepPlan(spans=(span("b", 2, 3, (1,)), span("a", 0, 3, (1,)))))
    assert [t.token_id for (t,) in after.tokens] == [10, 9]


def test_a_prompt_chunk_samples_nothing_but_reports_lost_experts() -> None:
    runner = make()
    assert runner.execute(StepPlan(spans=(span("a", 0, 0, (3, 4), sample=False),))).tokens == ((),)
    (lost,) = runner.execute(StepPlan(spans=(span("a", 0, 2, (LOST,), sample=False),))).tokens[0]
    assert lost.error == "store: lost"


def test_resident_experts_cannot_fail_so_nothing_is_saved() -> None:
    kv = KVCache(SPEC, num_rows=64, num_states=4, dtype=torch.float32)
    runner = Runner(Summing(), kv, ResidentBank(SPEC, lambda *_: None), INFO)  # type: ignore[arg-type, return-value]
    assert not runner._states


def test_the_decoder_hears_how_long_the_prompts_are(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[tuple[int, ...]] = []
    forward = Summing.forward

    def listen(self: Summing, batch: Batch, kv: KVCache) -> torch.Tensor:
        heard.append(batch.prompt_lens)
        return forward(self, batch, kv)

    monkeypatch.setattr(Summing, "forward", listen)
    spans = (span("a", 0, 0, (3, 4), sample=False), span("b", 1, 0, (5,)))
    make().execute(StepPlan(spans=tuple(replace(s, prompt_len=n) for s, n in zip(spans, (40, 1), strict=True))))
    assert heard == [(40, 1)]


def test_shutdown_closes_the_bank_once() -> None:
    runner = make()
    runner.shutdown()
    runner.shutdown()
    assert runner._bank.closed  # type: ignore[attr-defined]
    runner.check_integrity()
