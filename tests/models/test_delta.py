"""Which state slot a span of the batch carries on, and how the projections' rows are sorted."""

import torch

from smoe.kernels import RMSNorm
from smoe.models.batch import Batch, StepContext
from smoe.models.delta import DeltaAttention
from smoe.models.families.qwen3_next import split_mixed_rows
from smoe.models.kv import KVCache, LayerCache, bytes_per_row
from smoe.models.spec import DecoderSpec, DeltaSpec, DenseSpec, LayerSpec

HIDDEN = 24
SPEC = DeltaSpec(num_key_heads=2, num_value_heads=4, key_head_dim=6, value_head_dim=10, conv_kernel=4)
CHANNELS = 2 * 12 + 40
DECODER = DecoderSpec(
    family="qwen3_next",
    hidden=HIDDEN,
    vocab=7,
    layers=(LayerSpec(attention=SPEC, mlp=DenseSpec(ffn=8)),),
    norm="rms_plus_one",
    norm_eps=1e-6,
    tied_head=True,
    max_positions=64,
)


def layer_of() -> DeltaAttention:
    generator = torch.Generator().manual_seed(3)
    shapes = {
        "in.weight": (CHANNELS + 40 + 8, HIDDEN),
        "conv.weight": (CHANNELS, 4),
        "a_log": (4,),
        "dt_bias": (4,),
        "norm.weight": (10,),
        "out.weight": (HIDDEN, 40),
    }
    params = {f"a.{name}": torch.randn(shape, generator=generator) / 3 for name, shape in shapes.items()}
    return DeltaAttention(SPEC, params, "a", RMSNorm(torch.zeros(HIDDEN), 1e-6, plus_one=True), DECODER)


def cache_of(num_states: int) -> LayerCache:
    (cache,) = KVCache(DECODER, num_rows=0, num_states=num_states, dtype=torch.bfloat16).layers
    cache.first.fill_(torch.nan)
    cache.second.fill_(torch.nan)
    return cache


def step(layer: DeltaAttention, x: torch.Tensor, spans: list[tuple[int, int, int]], cache: LayerCache) -> torch.Tensor:
    """Spans are (rows, rows before, slot)."""
    batch = Batch.build([([0] * count, 0, past, slot) for count, past, slot in spans])
    return layer(x, StepContext(batch), cache)


def test_states_are_few_bytes_in_fp32_and_rows_none() -> None:
    cache = cache_of(2)
    assert (cache.first.shape, cache.second.shape) == ((2, 3, CHANNELS), (2, 4, 6, 10))
    assert cache.first.dtype is cache.second.dtype is torch.float32
    assert bytes_per_row(DECODER, torch.float32) == 0


def test_spans_carry_their_own_slots_on() -> None:
    layer, x, cache = layer_of(), torch.randn(20, HIDDEN), cache_of(3)
    alone = [step(layer, x[:12], [(12, 0, 1)], cache), step(layer, x[12:], [(8, 0, 1)], cache_of(3))]
    step(layer, torch.cat((x[:9], x[12:15])), [(9, 0, 2), (3, 0, 0)], cache := cache_of(3))
    together = step(layer, torch.cat((x[15:], x[9:12])), [(5, 3, 0), (3, 9, 2)], cache)
    assert torch.equal(together[:5], alone[1][3:])
    assert torch.equal(together[5:], alone[0][9:])
    assert cache.second[1].isnan().all()


def test_a_slot_is_used_again() -> None:
    layer, x, cache = layer_of(), torch.randn(9, HIDDEN), cache_of(1)
    first = step(layer, x, [(9, 0, 0)], cache)
    step(layer, x.flip(0), [(9, 0, 0)], cache)
    assert torch.equal(step(layer, x, [(9, 0, 0)], cache), first)


def test_mixed_rows_are_sorted_by_kind() -> None:
    """Row r of a projection is the number r, so the sorted rows spell out where each came from."""
    qkvz, ba = torch.arange(104.0).view(104, 1), 1000 + torch.arange(8.0).view(8, 1)
    rows = split_mixed_rows(SPEC, [qkvz, ba]).flatten().tolist()
    per_head = 6 + 6 + 20 + 20  # q, k, two values, two z of one key head
    first = {"q": 0, "k": 6, "v": 12, "z": 32}
    expected = [
        head * per_head + first[kind] + i
        for kind, n in zip("qkvz", (6, 6, 20, 20), strict=True)
        for head in (0, 1)
        for i in range(n)
    ]
    assert rows[:104] == expected
    assert rows[104:] == [1000, 1001, 1004, 1005, 1002, 1003, 1006, 1007]  # b of both heads, then a
