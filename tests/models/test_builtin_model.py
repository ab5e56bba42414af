"""The packaged model: its card tells what training.json says, its template follows the training text."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from smoe.models.loading import model_folder, open_checkpoint

RECIPE = Path(__file__).resolve().parents[2] / "benchmarks" / "recipes" / "train_builtin_model.py"
FOLDER = model_folder("builtin")


def test_card_has_the_recorded_losses_and_every_licence_file():
    card = (FOLDER / "README.md").read_text(encoding="utf-8")
    losses = json.loads((FOLDER / "training.json").read_text())["heldout_nats_per_token"]
    header, values = card[card.index("| code | dialogue") :].splitlines()[0:3:2]
    table = dict(zip(header.strip("| ").split(" | "), map(float, values.strip("| ").split(" | ")), strict=True))
    assert table == {name: round(loss, 2) for name, loss in losses.items()}
    for path in (FOLDER / "licenses").iterdir():
        assert f"`{path.name}`" in card


def test_chat_template_writes_the_lines_of_the_training_text():
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    messages = [
        {"role": "system", "content": "At the theatre."},
        {"role": "user", "content": "Two seats, please. "},
        {"role": "assistant", "content": "Which evening?"},
        {"role": "user", "content": "Friday."},
    ]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == ("At the theatre.\n\nUser: Two seats, please.\nAssistant: Which evening?\nUser: Friday.\nAssistant:")
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert tokenizer.decode(ids) == text


def test_recipe_makes_a_folder_that_both_sides_load(tmp_path):
    """Three steps on texts of a few kilobytes."""
    texts = tmp_path / "texts"
    texts.mkdir()
    words = ["the", "cat", "and", "dog", "of", "a", "house", "in", "which", "an", "old", "man", "sat", "reading"]
    generator = torch.Generator().manual_seed(0)
    for name in ("prose", "prose.heldout", "code", "code.heldout"):
        picks = torch.randint(len(words), (1500,), generator=generator).tolist()
        with gzip.open(texts / f"{name}.txt.gz", "wt", encoding="utf-8") as file:
            file.write(" ".join(words[i] for i in picks))
    out = tmp_path / "out"
    command = [sys.executable, RECIPE, texts, out, "--steps", "3", "--batch", "2", "--seq", "32"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

    training = json.loads((out / "training.json").read_text())
    assert (training["steps"], training["tokens"]) == (3, 3 * 2 * 32)
    assert training["heldout_nats_per_token"].keys() == {"prose", "code"}
    # Untrained, the loss is that of an even guess over 4096 tokens.
    assert all(7 < loss < 9 for loss in training["heldout_nats_per_token"].values())

    made, shipped = open_checkpoint(out), open_checkpoint("builtin")
    assert made.spec == shipped.spec
    shapes = [{name: tensor.shape for name, tensor in c.tensors.items()} for c in (made, shipped)]
    assert shapes[0] == shapes[1]
    for name in ("config.json", "tokenizer_config.json"):
        assert json.loads((out / name).read_text()) == json.loads((FOLDER / name).read_text())
    AutoModelForCausalLM.from_pretrained(out, local_files_only=True)
