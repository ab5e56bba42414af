"""The self-draft's bank: the arithmetic of the same weights in fp32, every family; its parameters are the model's."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig

from smoe.core.errors import ConfigError
from smoe.kernels import ExpertTensors
from smoe.kernels.int4 import dequantise_expert, quantise_expert
from smoe.models.bank import ResidentBank, RoutedRows
from smoe.models.batch import Batch
from smoe.models.decoder import Decoder
from smoe.models.kv import KVCache
from smoe.models.loading import Checkpoint
from smoe.models.quantised import int4_nbytes
from smoe.offload.draft_bank import check_aliases, make_int4_bank
from tests.models.parity import write_checkpoint
from tests.offload.test_exactness import _COMMON, FAMILIES, Model, load


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    name, options, how = FAMILIES[request.param]
    config = AutoConfig.for_model(name, **(_COMMON | options))
    return write_checkpoint(config, tmp_path_factory.mktemp(request.param), **how)


@pytest.fixture(scope="module")
def mixtral(tmp_path_factory: pytest.TempPathFactory) -> Path:
    name, options, how = FAMILIES["mixtral"]
    return write_checkpoint(
        AutoConfig.for_model(name, **(_COMMON | options)), tmp_path_factory.mktemp("mixtral"), **how
    )


def fake_quantised(checkpoint: Checkpoint, group_size: int) -> ResidentBank:
    """Weights that have been through 4 bits, in fp32."""
    spec = checkpoint.spec

    def read(layer: int, expert: int) -> ExpertTensors:
        packed = quantise_expert(checkpoint.read_expert(layer, expert, dtype=torch.float32), group_size)
        return dequantise_expert(packed, spec.hidden, spec.moe(layer).ffn, group_size)

    return ResidentBank(spec, read)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_family_decodes_as_over_the_same_weights_in_fp32(
    folder: Path, dtype: torch.dtype, tmp_path: Path
) -> None:
    model = load(folder, dtype)
    bank = make_int4_bank(model.checkpoint, 32, folder=tmp_path)
    actual = _logits(model, bank)
    expected = _logits(model, fake_quantised(model.checkpoint, 32))
    if dtype is torch.float32:
        assert torch.equal(actual, expected)
    # In bf16 the rows may be rounded to 8 bits, which can turn a close choice of the router: most rows are near.
    row_error = (actual - expected).norm(dim=-1) / expected.norm(dim=-1)
    assert float(row_error.median()) < 0.05
    assert bank.nbytes == int4_nbytes(model.checkpoint.spec, 32)
    plain = _logits(model, model.bank("all"))
    assert not torch.equal(actual, plain)


def _logits(model: Model, bank) -> torch.Tensor:
    """Of prompts that do not depend on what was answered: both banks see the same tokens."""
    spec, sequences, length = model.checkpoint.spec, 3, 17
    decoder = model.decoder(bank)
    kv = KVCache(spec, num_rows=sequences * 32, num_states=sequences, dtype=model.dtype)
    tokens = torch.randint(spec.vocab, (sequences, length), generator=torch.Generator().manual_seed(1)).tolist()
    out = [decoder.forward(Batch.build([(tokens[i][:12], i * 32, 0, i) for i in range(sequences)]), kv)]
    for at in range(12, length):
        spans = [(tokens[i][at : at + 1], i * 32, at, i) for i in range(sequences)]
        out.append(decoder.forward(Batch.build(spans), kv))
    return torch.cat(out)


def test_equal_input_gives_equal_bits_whatever_is_beside_it(mixtral: Path, tmp_path: Path) -> None:
    model = load(mixtral, torch.bfloat16)
    bank = make_int4_bank(model.checkpoint, 64, folder=tmp_path)
    x, residual = (torch.randn(30, 48).to(torch.bfloat16) for _ in range(2))
    ids = torch.stack([torch.randperm(6)[:2] for _ in range(30)]).to(torch.int32)
    weights = torch.rand(30, 2)
    rows = RoutedRows(0, x, ids, weights)
    whole = bank.apply(rows, residual)
    assert torch.equal(bank.apply(rows, residual), whole)
    for row in range(30):
        one = slice(row, row + 1)
        assert torch.equal(bank.apply(rows.part(one), residual[one]), whole[one])


def test_routed_hears_every_choice_before_the_experts_run(mixtral: Path, tmp_path: Path) -> None:
    model, heard = load(mixtral, torch.float32), []
    bank = make_int4_bank(model.checkpoint, 32, folder=tmp_path, routed=lambda layer, ids: heard.append((layer, ids)))
    chosen = []
    decoder = model.decoder(bank)
    batch = replace(
        Batch.build([([1, 2, 3, 4], 0, 0, 0)]), route_sink=lambda layer, ids, *_: chosen.append((layer, ids))
    )
    decoder.forward(batch, KVCache(model.checkpoint.spec, num_rows=8, num_states=1, dtype=torch.float32))
    assert [layer for layer, _ in heard] == list(model.checkpoint.spec.moe_layers)
    for (layer, ids), (wanted_layer, wanted) in zip(heard, chosen, strict=True):
        assert layer == wanted_layer
        assert ids.dtype == "int32"
        assert ids.tolist() == wanted.tolist()
    bank.routed = None
    before = len(heard)
    decoder.forward(batch, KVCache(model.checkpoint.spec, num_rows=8, num_states=1, dtype=torch.float32))
    assert len(heard) == before
    assert bank.stats().hits > 0
    bank.close()


def test_a_draft_copies_no_parameter(mixtral: Path, tmp_path: Path) -> None:
    """Two decoders over one mapping: what a change to the mapping's tensors does to one, it does to the other."""
    model = load(mixtral, torch.float32)
    pointers = {name: tensor.data_ptr() for name, tensor in model.params.items()}
    target, draft = model.bank("all"), make_int4_bank(model.checkpoint, 32, folder=tmp_path)
    decoders = [Decoder(model.checkpoint.spec, model.params, bank, dtype=torch.float32) for bank in (target, draft)]
    assert {name: tensor.data_ptr() for name, tensor in model.params.items()} == pointers
    check_aliases(model.params, dict(model.params))

    def run(decoder: Decoder) -> torch.Tensor:
        kv = KVCache(model.checkpoint.spec, num_rows=8, num_states=1, dtype=torch.float32)
        return decoder.forward(Batch.build([([1, 2, 3], 0, 0, 0)]), kv)

    before = [run(decoder) for decoder in decoders]
    for name in ("embed", "head.weight", "layers.1.moe.router.weight", "layers.0.attn.qkv.weight"):
        model.params[name].neg_()
        after = [run(decoder) for decoder in decoders]
        assert not any(torch.equal(a, b) for a, b in zip(after, before, strict=True)), name
        before = after


def test_parameters_that_are_not_shared_or_do_not_fit_are_named(mixtral: Path) -> None:
    params = load(mixtral, torch.float32).params
    name = "layers.0.attn.out.weight"
    with pytest.raises(ConfigError, match=rf"draft: {name}: 'a copy' \(the model's own tensor\)"):
        check_aliases(params, params | {name: params[name].clone()})
    with pytest.raises(ConfigError, match=rf"draft: {name}: \[47, 48\] \(the shape of the model's, \[48, 48\]\)"):
        check_aliases(params, params | {name: params[name][:-1]})
    with pytest.raises(ConfigError, match="the draft has none of that name"):
        check_aliases(params, {key: value for key, value in params.items() if key != name})
    with pytest.raises(ConfigError, match=r"'extra'.*the model has none of that name"):
        check_aliases(params, params | {"extra": params[name]})
