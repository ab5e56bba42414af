import pytest

from smoe.bench.decode.bound import touched_bytes
from smoe.bench.decode.builtin import Samples, prompts
from smoe.core.model_info import ModelInfo


def test_best_peer_is_the_fastest_by_median_and_never_smoe() -> None:
    samples = Samples()
    for name, rates in {"smoe": [99.0], "eager": [1.0, 9.0, 2.0], "grouped_mm": [3.0, 3.0, 3.0]}.items():
        for rate in rates:
            samples.add(name, rate)
    assert samples.best_peer() == ("grouped_mm", 3.0)


def test_prompts_are_seeded_and_in_range() -> None:
    ids = prompts(3, 5, 11, seed=4)
    assert ids == prompts(3, 5, 11, seed=4)
    assert ids != prompts(3, 5, 11, seed=5)
    assert {len(row) for row in ids} == {5}
    assert all(1 <= i < 11 for row in ids for i in row)


def test_touched_bytes_counts_chosen_experts_and_leaves_the_embedding_out() -> None:
    info = ModelInfo(
        name="m",
        family="qwen3_moe",
        fingerprint="f",
        dtype="bfloat16",
        vocab_size=10,
        max_model_len=64,
        num_layers=3,
        moe_layers=(1, 2),
        num_experts=8,
        top_k=2,
        expert_bytes=100,
        dense_bytes=10 * 2048 * 2 + 7,
        eos_token_ids=(0,),
        has_tokenizer=False,
    )
    assert touched_bytes(info) == 2 * 2 * 100 + 7


@pytest.mark.parametrize("length", [1, 3])
def test_prompt_length(length: int) -> None:
    assert len(prompts(1, length, 50, seed=0)[0]) == length
