"""Scores of the packaged model against transformers."""

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from smoe.bench.quality.recording import Recording
from smoe.bench.quality.scoring import Scorer
from smoe.core.config import EngineConfig
from smoe.models.decoder import Decoder
from smoe.models.loading import open_checkpoint
from smoe.offload.build import make_bank

TEXT = (1201, 17, 530, 88, 88, 4001, 2, 903, 77, 1500, 310, 45)


def resident_scorer() -> Scorer:
    checkpoint = open_checkpoint("builtin")
    bank = make_bank(checkpoint, EngineConfig(), torch.float32)
    params = checkpoint.params(dtype=torch.float32)
    return Scorer(Decoder(checkpoint.spec, params, bank, dtype=torch.float32), max_tokens=len(TEXT))


def test_nats_are_those_of_transformers() -> None:
    folder = open_checkpoint("builtin").folder
    peer = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    ids = torch.tensor([TEXT])
    with torch.inference_mode():
        logits = peer(ids).logits[0, :-1].double()
    expected = torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="none").numpy()
    found = resident_scorer().nats(TEXT)
    assert np.abs(found - expected).max() < 1e-4
    assert abs(np.exp(found.mean()) / np.exp(expected.mean()) - 1) < 1e-4


def test_every_token_is_one_step_and_each_text_starts_afresh() -> None:
    scorer = resident_scorer()
    seen: list[tuple[int, int]] = []
    first = scorer.nats(TEXT, route_sink=lambda layer, ids, _w, _l: seen.append((layer, len(ids))))
    assert seen == [(layer, 1) for _ in TEXT for layer in range(6)]
    assert len(scorer.step_s) == len(TEXT)
    assert np.array_equal(scorer.nats(TEXT), first)


def test_recording_is_a_valid_trace_of_decode_steps() -> None:
    scorer, spec = resident_scorer(), open_checkpoint("builtin").spec
    recording = Recording(fingerprint="f", num_experts=64, top_k=8, layers=spec.moe_layers)
    for text in (TEXT[:5], TEXT[5:]):
        scorer.nats(text, route_sink=recording.see)
        recording.end_text(text)
    trace = recording.trace()
    trace.validate()
    assert trace.sequence_start.tolist() == [0, 5, len(TEXT)]
    assert trace.token_ids.tolist() == list(TEXT)
    assert trace.router_logits is not None
    # The chosen are those with the largest logits, heaviest first.
    best = np.argsort(-trace.router_logits.astype(np.float32), axis=-1, kind="stable")[..., :8]
    assert (best == trace.expert_ids).mean() > 0.99
