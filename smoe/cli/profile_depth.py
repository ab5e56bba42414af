"""`smoe profile depth`: how far a draft had better go on this host."""

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from smoe.cli import options
from smoe.cli.generate import dtype_of
from smoe.cli.progress import Progress
from smoe.cli.values import integer
from smoe.core.config import DEFAULT_POLICY, EngineConfig
from smoe.core.draft import DEFAULT_GROUP_SIZE, DEFAULT_PREFETCH, DraftConfig
from smoe.core.errors import ConfigError
from smoe.core.expert_tier import DEFAULT_TIER

if TYPE_CHECKING:
    from smoe.engine.draft.measure_depth import DepthResult

NAME = "depth"
EXAMPLE = options.example("smoe profile depth --draft int4 --expert-memory 60%")


def command(
    draft: options.Draft = "int4",
    draft_group_size: options.DraftGroupSize = None,
    draft_residual: options.DraftResidual = False,
    model: options.Model = "builtin",
    dtype: options.DType = "auto",
    expert_memory: options.ExpertMemoryOption = "all",
    expert_policy: options.ExpertPolicy = None,
    expert_tier: options.ExpertTier = DEFAULT_TIER,
    expert_link: options.ExpertLink = None,
    threads: options.Threads = None,
    prompts: Annotated[str, typer.Option("--prompts", metavar="N", help="Of each of the five packaged sets.")] = "1",
    prompt_tokens: Annotated[
        str, typer.Option("--prompt-tokens", metavar="N", help="Length of a prompt, at most.")
    ] = "16",
    max_tokens: Annotated[str, typer.Option("--max-tokens", metavar="N", help="Tokens of each answer.")] = "48",
    repeats: Annotated[str, typer.Option("--repeats", metavar="N", help="Answers to each prompt at each depth.")] = "2",
    json: Annotated[bool, typer.Option("--json", help="Print the figures as a JSON object.")] = False,
) -> None:
    """Measure how far a draft should go: of several depths, the one with the least mean time a token is kept for this
    model, draft and host, and used by --draft-tokens auto. Runs in this process."""
    counts = {
        name: _at_least(name, text, low)
        for name, text, low in (
            ("prompts", prompts, 1),
            ("prompt_tokens", prompt_tokens, 1),
            ("max_tokens", max_tokens, 2),
            ("repeats", repeats, 1),
        )
    }
    drafted = DraftConfig(
        model=draft or "",
        group_size=integer("draft_group_size", draft_group_size) or DEFAULT_GROUP_SIZE,
        prefetch=DEFAULT_PREFETCH,
        residual=draft_residual,
    )
    config = EngineConfig(
        model=model,
        dtype=dtype_of(dtype),
        expert_memory=expert_memory,
        expert_policy=DEFAULT_POLICY if expert_policy is None else expert_policy,
        expert_tier=expert_tier,
        expert_link=expert_link,
        threads=integer("threads", threads),
        draft=drafted,
    )
    from smoe.bench.speculation.prompts import prompt_sets
    from smoe.cli import preflight
    from smoe.engine.draft.known_depth import keep_depth
    from smoe.engine.draft.measure_depth import measure_depths

    checked = preflight.check(config)
    if checked.tokenizer is None:
        raise ConfigError("model", model, "a folder with a tokenizer")
    sets = prompt_sets(checked.tokenizer.encode, counts["prompts"], counts["prompt_tokens"])
    listed = [prompt for prompts_of_set in sets.values() for prompt in prompts_of_set]
    with Progress("answers", 0) as progress:
        results = measure_depths(
            config,
            drafted,
            listed,
            repeats=counts["repeats"],
            tokens=counts["max_tokens"],
            on_run=lambda done, total: progress.update(done),
        )
    best = min(results[1:], key=lambda result: result.mean_ms)
    record = {
        "tokens": best.depth,
        "model": checked.info.fingerprint,
        "draft": asdict(drafted),
        "expert_memory": expert_memory,
        "expert_link": expert_link,
        **counts,
        "depths": [_figures(result) for result in results],
    }
    path = keep_depth(drafted, checked.info.fingerprint, record)
    if json:
        import json as json_module

        print(json_module.dumps(record, indent=1))
        return
    _print(results, best)
    if best.mean_ms >= results[0].mean_ms:
        print(f"no depth is faster than no draft ({results[0].mean_ms:.2f} ms a token)", file=sys.stderr)
    print(f"{path}: {best.depth} tokens", file=sys.stderr)


def _at_least(name: str, text: str, low: int) -> int:
    value = integer(name, text)
    if value is None or value < low:
        raise ConfigError(name, text, f"integer >= {low}")
    return value


def _figures(result: "DepthResult") -> dict[str, Any]:
    return {"depth": result.depth, "mean_ms": result.mean_ms, "tpot_ms": result.tpot_ms, **asdict(result.draft)}


def _print(results: "list[DepthResult]", best: "DepthResult") -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for column in ("tokens drafted", "ms a token", "against none", "kept", "tokens a window"):
        table.add_column(column, justify="right")
    for result in results:
        draft = result.draft
        table.add_row(
            f"{result.depth or 'none'}{' *' if result is best else ''}",
            f"{result.mean_ms:.2f}",
            f"{results[0].mean_ms / result.mean_ms:.2f}x",
            f"{draft.accepted / draft.drafted:.1%}" if draft.drafted else "",
            f"{1 + draft.accepted / draft.windows:.2f}" if draft.windows else "",
        )
    Console().print(table)
