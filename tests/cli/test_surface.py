"""The public surface, frozen: a change here is a change for users."""

import subprocess
import sys
from collections.abc import Callable

import pytest
import typer

import smoe as package
from smoe.cli.app import app

COMMON = ["--dtype", "--expert-memory", "--expert-policy", "--help", "--max-model-len", "--model"]
SAMPLING = ["--max-tokens", "--seed", "--stop", "--temperature", "--top-k", "--top-p"]
GENERATE = [
    *("--ignore-eos", "--in-process", "--json", "--logprobs", "--prompt", "--prompt-file", "--prompt-token-ids"),
    *("--expert-link", "--expert-tier", "--record-fraction", "--record-logits", "--record-lookahead"),
    *("--record-routes", "--threads"),
]
DEPLOYMENT = [
    *("--capacity-factor", "--no-dedup", "--placement", "--print-config", "--schedule", "--tensor-parallel-size"),
    *("--data-parallel-routing", "--data-parallel-size", "[CONFIG.yaml]"),
]
DRAFT = [
    *("--draft", "--draft-group-size", "--draft-lossy", "--draft-prefetch", "--draft-residual", "--draft-tokens"),
    "--no-draft-auto-off",
]
SURFACE = {
    "generate": sorted([*COMMON, *SAMPLING, *GENERATE, *DEPLOYMENT, *DRAFT]),
    "chat": sorted(
        [*COMMON, *SAMPLING, *DEPLOYMENT, *DRAFT, "--expert-memory-max", "--expert-tier", "--in-process", "--threads"]
    ),
    "serve": sorted(
        [
            *(*COMMON, *DEPLOYMENT, *DRAFT, "--api-key", "--drain-timeout", "--expert-link", "--expert-memory-max"),
            *("--expert-tier", "--host", "--in-process", "--ingress", "--max-body-bytes", "--max-num-batched-tokens"),
            *("--max-num-seqs", "--max-queue", "--metrics-reset", "--port", "--replicas", "--request-timeout"),
            *("--served-model-name", "--threads"),
        ]
    ),
    "plan": sorted(
        [
            *(*COMMON, "--expert-link", "--expert-memory-max", "--expert-tier", "--json", "--max-num-seqs"),
            *("--data-parallel-size", "--placement", "--tensor-parallel-size", "[CONFIG.yaml]"),
            *("--draft", "--draft-group-size", "--draft-residual", "--draft-tokens"),
        ]
    ),
    "top": ["--api-key", "--help", "--interval", "--once", "[URL]"],
    "doctor": ["--dir", "--help", "--json"],
    "bench cache": ["--help", "--in-process", "--out", "--quick", "--trace"],
    "bench comm": ["--cache", "--help", "--out", "--quick", "--skip-actors"],
    "bench compare": ["--help", "--json", "A.json", "B.json"],
    "bench decode": ["--cache", "--help", "--out", "--quick", "--skip-inflated"],
    "bench offload": ["--cache", "--help", "--out", "--policies", "--quick", "--skip-peers"],
    "bench quality": ["--cache", "--expert-memory", "--help", "--out", "--quick", "--skip-inflated"],
    "bench regroup": ["--data", "--help", "--in-process", "--out", "--parts", "--quick"],
    "bench serve": ["--cache", "--help", "--out", "--quick", "--skip-inflated"],
    "bench slo": sorted(
        [
            *("--api-key", "--arrival", "--base-url", "--endpoint", "--goodput", "--help", "--input-len"),
            *("--len-spread", "--max-concurrency", "--max-model-len", "--model", "--no-ignore-eos", "--num-requests"),
            *("--out", "--output-len", "--percent", "--prompts", "--rates", "--repeats", "--request-timeout", "--seed"),
            *("--serve", "--skip-bad-rows", "--start-rate", "--tokenizer", "--tolerance", "--warmup", "--workload"),
            "[NAME:MS]...",
        ]
    ),
    "bench speculation": ["--cache", "--help", "--out", "--quick"],
    "bench throughput": sorted(
        [
            *("--batch", "--data-parallel-size", "--draft", "--draft-tokens", "--dtype", "--expert-link"),
            *("--expert-memory", "--expert-policy", "--expert-tier", "--help", "--in-process", "--input-len"),
            *("--max-num-batched-tokens", "--model", "--out", "--output-len", "--placement", "--prompts", "--repeats"),
            *("--rounds", "--schedule", "--seed", "--tensor-parallel-size", "--threads", "[CONFIG.yaml]"),
        ]
    ),
    "convert inflate": ["--dtype", "--expert-ffn", "--help", "--hidden", "--model", "--out", "--seed"],
    "profile depth": [
        *("--draft", "--draft-group-size", "--draft-residual", "--dtype", "--expert-link", "--expert-memory"),
        *("--expert-policy", "--expert-tier", "--help", "--json", "--max-tokens", "--model", "--prompt-tokens"),
        *("--prompts", "--repeats", "--threads"),
    ],
    "profile steps": ["--dtype", "--front", "--help", "--model", "--out", "--quick", "--threads"],
    "profile routes": [
        *("--data", "--dtype", "--expert-memory", "--expert-policy", "--expert-tier", "--help", "--in-process"),
        *("--max-sequence", "--max-tokens", "--model", "--out", "--pack", "--record-logits", "--sample", "--seed"),
        "--threads",
    ],
    "placement diff": ["--expert-bytes", "--help", "--json", "AFTER", "BEFORE"],
    "placement export": ["--format", "--help", "--out", "DIR"],
    "placement invert": ["--help", "--json", "--layer", "DIR"],
    "placement show": ["--help", "--json", "DIR"],
    "placement validate": ["--help", "--model", "DIR"],
    "regroup": [
        *("--compare", "--config", "--devices", "--heldout", "--help", "--in-process", "--jobs", "--json", "--load"),
        *("--load-name", "--max-load", "--model", "--out", "--replicas", "--router-groups", "--seed"),
        *("--slots-of-device", "--solver", "--solver-option", "--theta", "--topology", "--trace", "--vocab-size"),
    ],
    "simulate serving": sorted(
        [
            *("--arrival", "--compute", "--expert-bytes", "--expert-memory", "--expert-policy", "--goodput", "--help"),
            *("--imbalance", "--input-len", "--json", "--kv-rows", "--lar", "--len-spread", "--link"),
            *("--max-model-len", "--max-num-batched-tokens", "--max-num-seqs", "--min-duration", "--model-shape"),
            "--no-dedup",
            *("--num-requests", "--out", "--output-len", "--percent", "--rates", "--schedule", "--seed"),
            *("--skip-bad-rows", "--start-rate", "--step-profile", "--tolerance", "--topology", "--trace"),
            *("--workload", "[NAME:MS]..."),
        ]
    ),
    "simulate experts": [
        *("--batch", "--compute", "--draft", "--draft-acceptance", "--draft-group-size", "--draft-prefetch"),
        *("--draft-recall", "--draft-step", "--draft-tokens"),
        *("--expert-bytes", "--expert-memory", "--expert-policy", "--help", "--in-process"),
        *("--jobs", "--json", "--link", "--max-tokens", "--mode", "--pause-share", "--pool", "--seed", "--trace"),
    ],
    "trace import": [
        *("--dataset", "--help", "--incomplete", "--max-sequence", "--max-tokens", "--num-experts", "--out"),
        *("--seed", "--sequence-length", "--task", "--weights", "--without-repetition", "FILE"),
    ],
    "trace info": ["--help", "--json", "FILE"],
    "trace merge": ["--help", "--out", "FILE..."],
    "trace split": ["--fraction", "--help", "--out", "--rest", "--seed", "FILE"],
}


def verbs() -> dict[str, list[str]]:
    found = {}
    root = typer.main.get_command(app)
    for name, command in root.commands.items():  # type: ignore[attr-defined]
        below = getattr(command, "commands", None)
        for verb, leaf in (
            {name: command}.items() if below is None else {f"{name} {n}": c for n, c in below.items()}.items()
        ):
            names = [o for p in leaf.params for o in (p.opts if p.param_type_name == "option" else [p.metavar])]
            found[verb] = sorted([*names, "--help"])
    return found


def test_verbs_and_flags() -> None:
    assert verbs() == SURFACE


def test_exported_names() -> None:
    assert package.__all__ == ["LLM", "SamplingParams"]
    assert package.LLM.__name__ == "LLM"
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = package.nonsense


@pytest.mark.parametrize("verb", SURFACE)
def test_help_ends_with_an_example(smoe: Callable, verb: str) -> None:
    result = smoe(*verb.split(), "--help")
    assert result.code == 0
    *_, heading, example = result.out.rstrip().splitlines()
    assert heading.strip() == "Example:"
    assert example.strip().startswith(f"smoe {verb} ")


def test_help_imports_nothing_heavy() -> None:
    heavy = "[m for m in ('torch', 'ray', 'transformers', 'numpy') if m in sys.modules]"
    code = f"import sys; from smoe.cli.app import run; run(['--help']); print({heavy})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
