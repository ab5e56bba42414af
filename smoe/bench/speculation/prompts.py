"""Five sets of prompts: the packaged held-out texts by domain, and problems of GSM8K."""

import gzip
import json
from collections.abc import Callable
from importlib import resources

from smoe.bench.quality.texts import heldout_tokens, windows

GSM8K = "gsm8k"


def prompt_sets(encode: Callable[[str], list[int]], count: int, length: int) -> dict[str, list[tuple[int, ...]]]:
    """`count` prompts a set, of `length` tokens; those of GSM8K are whole problems of at most as many."""
    sets = {domain: windows(ids, count, length) for domain, ids in heldout_tokens(encode).items()}
    problems = (tuple(encode(f"{problem}\n"))[-length:] for problem in gsm8k_problems())
    sets[GSM8K] = [prompt for prompt, _ in zip(problems, range(count), strict=False)]
    return sets


def gsm8k_problems() -> list[str]:
    path = resources.files("smoe") / "assets" / "prompts" / "gsm8k.jsonl.gz"
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    return [json.loads(line)["question"] for line in lines]
