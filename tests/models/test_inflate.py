"""An inflated folder computes what its source does, in smoe and in transformers."""

import json
import re

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

from smoe.core.errors import ConfigError
from smoe.models.batch import Batch
from smoe.models.inflate import inflate
from smoe.models.loading import open_checkpoint
from tests.models.loading_folders import GPT_OSS, QWEN3, make_folder
from tests.models.parity import SmoeRun

PROMPTS = ("Once upon a time there was a", "def main():\n    import", "User: I would like to book a table")
NUM_TOKENS = 256
# Two fp32 computations of the same values in other orders.
LOGIT_TOLERANCE = 1e-4


def greedy(run, prompt, num_tokens):
    """(ids, logits of each step) of one sequence."""
    kv, past, piece = run.cache(len(prompt) + num_tokens), 0, list(prompt)
    ids, logits = [], []
    for _ in range(num_tokens):
        logits.append(run.decoder.forward(Batch.build([(piece, 0, past, 0)]), kv)[0])
        past += len(piece)
        piece = [int(logits[-1].argmax())]
        ids += piece
    return ids, torch.stack(logits)


@pytest.fixture(scope="module")
def builtin_inflated(tmp_path_factory):
    """192 to 256 values; 48 to 112 units, so some are there twice and some three times."""
    folder = tmp_path_factory.mktemp("inflated") / "out"
    inflate(open_checkpoint("builtin"), folder, hidden=256, expert_ffn=112, dtype="float32")
    return folder


def test_greedy_tokens_agree_for_256_tokens(builtin_inflated):
    source, inflated = SmoeRun("builtin", torch.float32), SmoeRun(builtin_inflated, torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(builtin_inflated)
    for prompt in PROMPTS:
        prompt_ids = tokenizer(prompt).input_ids
        expected_ids, expected = greedy(source, prompt_ids, NUM_TOKENS)
        ids, logits = greedy(inflated, prompt_ids, NUM_TOKENS)
        assert ids == expected_ids
        assert (logits - expected).abs().max() < LOGIT_TOLERANCE


def test_transformers_loads_the_folder_and_agrees(builtin_inflated):
    """On every position of the text that the source generates."""
    prompt_ids = AutoTokenizer.from_pretrained(builtin_inflated)(PROMPTS[0]).input_ids
    ids, logits = greedy(SmoeRun("builtin", torch.float32), prompt_ids, NUM_TOKENS)
    model, info = AutoModelForCausalLM.from_pretrained(
        builtin_inflated, dtype=torch.float32, local_files_only=True, output_loading_info=True
    )
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    with torch.no_grad():
        theirs = model(torch.tensor([prompt_ids + ids])).logits[0, len(prompt_ids) - 1 : -1]
    assert theirs.argmax(-1).tolist() == ids
    assert (theirs - logits).abs().max() < LOGIT_TOLERANCE


def test_matrices_are_dense_and_norms_constant(builtin_inflated):
    checkpoint = open_checkpoint(builtin_inflated)
    for path in {tensor.path for tensor in checkpoint.tensors.values()}:
        with safe_open(path, "pt") as shard:
            for name in shard.keys():  # noqa: SIM118
                tensor = shard.get_tensor(name)
                if tensor.dim() == 2:
                    assert (tensor == 0).float().mean() < 1e-3, name
                    assert tensor.std(0).min() > 0, name
                elif "layernorm" in name or name == "model.norm.weight":
                    assert (tensor == tensor[0]).all(), name


@pytest.mark.parametrize("changes", [{}, {"attention_bias": True}, {"tie_word_embeddings": True}], ids=str)
@pytest.mark.parametrize("layout", ["split", "stacked"])
def test_every_variant_of_the_family(tmp_path, changes, layout):
    """With a dense layer in between; a large eps shows if one of the two kinds of norm gets the wrong one."""
    make_folder(tmp_path / "in", QWEN3 | {"rms_norm_eps": 1e-2} | changes, layout=layout)
    inflate(open_checkpoint(tmp_path / "in"), tmp_path / "out", hidden=40, expert_ffn=23, dtype="float32")
    tokens = torch.randint(50, (40,), generator=torch.Generator().manual_seed(0))
    expected, routes = SmoeRun(tmp_path / "in", torch.float32).run(tokens, 30)
    logits, inflated_routes = SmoeRun(tmp_path / "out", torch.float32).run(tokens, 30)
    assert expected.std() > 1e-3
    assert (logits - expected).abs().max() < 1e-5 * expected.abs().max()
    for layer, (ids, _) in routes.items():
        assert torch.equal(inflated_routes[layer][0], ids)


def test_the_seed_decides_every_byte(tmp_path):
    make_folder(tmp_path / "in")
    source = open_checkpoint(tmp_path / "in")
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        inflate(source, tmp_path / name, hidden=32, expert_ffn=10, seed=seed)
    shards = [(tmp_path / name / "model-00001-of-00001.safetensors").read_bytes() for name in "abc"]
    assert shards[0] == shards[1] != shards[2]
    assert json.loads((tmp_path / "a" / "inflation.json").read_text())["source_fingerprint"] == source.fingerprint


def test_several_shards_and_progress(tmp_path, monkeypatch):
    monkeypatch.setattr("smoe.models.inflate._SHARD_BYTES", 20_000)
    make_folder(tmp_path / "in")
    seen = []
    inflate(
        open_checkpoint(tmp_path / "in"),
        tmp_path / "out",
        hidden=32,
        expert_ffn=12,
        on_progress=lambda done, total: seen.append((done, total)),
    )
    assert len(list((tmp_path / "out").glob("*.safetensors"))) > 2
    checkpoint = open_checkpoint(tmp_path / "out")
    total = sum(tensor.nbytes for tensor in checkpoint.tensors.values())
    assert seen[-1] == (total, total)
    assert seen == sorted(seen)
    assert len(seen) == len(checkpoint.tensors)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden": 23}, "hidden: 23 (at least the source's 24)"),
        ({"expert_ffn": 9}, "expert_ffn: 9 (at least the source's 10)"),
        ({"dtype": "float16"}, "dtype: 'float16' (bfloat16 or float32)"),
    ],
)
def test_sizes_that_do_not_fit(tmp_path, changes, message):
    make_folder(tmp_path / "in")
    with pytest.raises(ConfigError, match=re.escape(message)):
        inflate(open_checkpoint(tmp_path / "in"), tmp_path / "out", **({"hidden": 32, "expert_ffn": 10} | changes))
    assert not (tmp_path / "out").exists()


def test_other_families_are_refused(tmp_path):
    make_folder(tmp_path, GPT_OSS, layout="gptoss")
    with pytest.raises(ConfigError, match=r"model: .gpt_oss. .inflation knows qwen3_moe only"):
        inflate(open_checkpoint(tmp_path), tmp_path / "out", hidden=128, expert_ffn=64)


def test_a_folder_that_holds_something_is_left_alone(tmp_path):
    make_folder(tmp_path / "in")
    with pytest.raises(ConfigError, match=r"out: .* \(an empty or new folder\)"):
        inflate(open_checkpoint(tmp_path / "in"), tmp_path / "in", hidden=32, expert_ffn=10)


def test_a_failed_run_leaves_nothing(tmp_path):
    make_folder(tmp_path / "in")
    source = open_checkpoint(tmp_path / "in")
    path = tmp_path / "in" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(ValueError, match="truncated"):
        inflate(source, tmp_path / "out", hidden=32, expert_ffn=10)
    assert [p.name for p in tmp_path.iterdir()] == ["in"]


def test_out_that_cannot_be_written(tmp_path):
    make_folder(tmp_path / "in")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"out: .*cannot be written"):
        inflate(open_checkpoint(tmp_path / "in"), tmp_path / "file" / "out", hidden=32, expert_ffn=10)


def test_what_a_killed_run_left_is_cleared(tmp_path):
    make_folder(tmp_path / "in")
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial" / "stale.safetensors").write_text("")
    inflate(open_checkpoint(tmp_path / "in"), tmp_path / "out", hidden=32, expert_ffn=10)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]
    assert not (tmp_path / "out" / "stale.safetensors").exists()
