"""`smoe simulate`: what a cache, a prefetcher and a miss policy would do on a recorded trace."""

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, cast

import typer

from smoe.cli import options, simulate_draft
from smoe.cli.progress import Progress
from smoe.cli.values import integer, no_effect, number
from smoe.core.errors import ConfigError

if TYPE_CHECKING:
    from smoe.core.route_trace import RouteTrace
    from smoe.sim.result import SimResult
    from smoe.sim.sweep import SweepItem

NAME = "experts"
EXAMPLE = options.example(
    "smoe simulate experts --trace gpt-oss-20b --expert-memory 25% --expert-policy evict=lru "
    "--expert-policy evict=belady"
)


def command(
    trace: Annotated[
        str, typer.Option("--trace", metavar="FILE|NAME", help="A route trace, or the name of a packaged one.")
    ] = "gpt-oss-20b",
    expert_memory: Annotated[
        list[str] | None,
        typer.Option("--expert-memory", metavar="SIZE", help="As for generate; may be repeated. Default 25%."),
    ] = None,
    expert_policy: Annotated[
        list[str] | None,
        typer.Option("--expert-policy", metavar="POLICIES", help="As for generate; repeatable. Default: evict=lru."),
    ] = None,
    link: Annotated[
        str | None, typer.Option("--link", metavar="RATE", help="To where experts come from: 2GB/s, or 2GB/s+0.1ms.")
    ] = None,
    compute: Annotated[
        str | None,
        typer.Option(
            "--compute",
            metavar="TIMES",
            help="With --link: of a layer and an expert's row, 0.3ms+50us; +0.4ms: of a row in place.",
        ),
    ] = None,
    expert_bytes: Annotated[
        str | None, typer.Option("--expert-bytes", metavar="BYTES", help="Of one expert; packaged traces know theirs.")
    ] = None,
    pool: Annotated[
        str, typer.Option("--pool", metavar="POOL", help="Slots by `layer`, as the engine has them, or `shared`.")
    ] = "layer",
    mode: Annotated[
        str,
        typer.Option(
            "--mode", metavar="MODE", help="`recorded`: prompts whole, then token by token; `decode`; `prefill`."
        ),
    ] = "recorded",
    batch: Annotated[str, typer.Option("--batch", metavar="N", help="Sequences that run at the same time.")] = "1",
    pause_share: Annotated[
        str | None,
        typer.Option(
            "--pause-share",
            metavar="X",
            help="Prefetching into a layer pauses itself where more than this share is wasted; the engine's is 0.6.",
        ),
    ] = None,
    draft: simulate_draft.Draft = None,
    draft_tokens: simulate_draft.Tokens = None,
    draft_acceptance: simulate_draft.Acceptance = None,
    draft_recall: simulate_draft.Recall = None,
    draft_step: simulate_draft.Step = None,
    draft_prefetch: simulate_draft.Prefetch = None,
    draft_group_size: simulate_draft.GroupSize = None,
    max_tokens: Annotated[
        str | None, typer.Option("--max-tokens", metavar="N", help="Draw sequences up to N tokens; default: all.")
    ] = None,
    seed: options.Seed = None,
    jobs: Annotated[
        str | None, typer.Option("--jobs", metavar="N", help="Simulations at a time; default: one a core.")
    ] = None,
    in_process: options.InProcess = False,
    json: Annotated[bool, typer.Option("--json", help="Print the results as a JSON list.")] = False,
) -> None:
    """Replay a route trace through the policies, with a link and a compute model. Needs no model.

    Several memories and policies make a sweep: each with each, over Ray.
    """
    from smoe.core.link_model import LinkModel
    from smoe.core.packaged_traces import expert_bytes_of, open_trace
    from smoe.core.route_edit import sample_sequences
    from smoe.sim.compute import ComputeModel
    from smoe.sim.forwards import MODES, Mode
    from smoe.sim.simulate import POOLS, Pool
    from smoe.sim.sweep import SweepItem, check_items
    from smoe.sim.units import byte_count

    numbers = {"batch": _positive("batch", batch), "seed": _seed(seed)}
    given_jobs, tokens = (_positive(n, v) for n, v in (("jobs", jobs), ("max_tokens", max_tokens)))
    if in_process and given_jobs is not None:
        raise ConfigError("jobs", given_jobs, "not with --in-process, which runs one at a time")
    for name, value, known in (("pool", pool, POOLS), ("mode", mode, MODES)):
        if value not in known:
            raise ConfigError(name, value, f"one of {', '.join(known)}")
    share = _share(pause_share)
    link_model = None if link is None else LinkModel.parse(link)
    if compute is not None and link_model is None:
        raise no_effect("compute", compute, "--link")
    drafted = simulate_draft.parse(
        draft,
        tokens=draft_tokens,
        acceptance=draft_acceptance,
        recall=draft_recall,
        step=draft_step,
        prefetch=draft_prefetch,
        group_size=draft_group_size,
        timed=link_model is not None,
    )
    size = expert_bytes_of(trace) if expert_bytes is None else int(byte_count("expert_bytes", expert_bytes))
    if expert_bytes is not None and size is not None and size < 1:
        raise ConfigError("expert_bytes", expert_bytes, "above zero")
    items = [
        SweepItem(
            policy=policy,
            capacity=memory,
            link=link_model,
            compute=None if compute is None else ComputeModel.parse(compute),
            expert_bytes=size,
            pool=cast(Pool, pool),
            mode=cast(Mode, mode),
            batch=numbers["batch"] or 1,
            pause_share=share,
            draft=drafted,
            seed=numbers["seed"] or 0,
        )
        for policy in expert_policy or ["evict=lru"]
        for memory in expert_memory or ["25%"]
    ]
    if share is not None and not any(_prefetches(item.policy) for item in items):
        raise no_effect("pause_share", share, "a policy that prefetches")
    routes = open_trace(trace)
    if tokens is not None:
        routes = sample_sequences(routes, tokens, seed=numbers["seed"] or 0)
    check_items(items, routes)
    cores = given_jobs or (1 if in_process else os.cpu_count() or 1)
    results = _run(items, routes, min(cores, len(items)))
    if json:
        import json as json_module

        print(json_module.dumps([result.to_json() for result in results], indent=1))
    else:
        _print_table(trace, routes, results)


def _run(items: "Sequence[SweepItem]", trace: "RouteTrace", jobs: int) -> "list[SimResult]":
    """In the order of `items`."""
    from smoe.sim.sweep import run_item

    if len(items) == 1:
        with Progress("tokens", trace.num_tokens) as progress:
            return [run_item(items[0], trace, progress.update)]
    found: dict[int, SimResult] = {}
    with Progress("simulations", len(items)) as progress:
        if jobs == 1:
            for index, item in enumerate(items):
                found[index] = run_item(item, trace)
                progress.update(len(found))
        else:
            from smoe.actors.sweep import fan_out

            for index, result in fan_out(run_item, items, trace, jobs=jobs):
                found[index] = result
                progress.update(len(found))
    return [found[index] for index in range(len(items))]


def _print_table(name: str, trace: "RouteTrace", results: "Sequence[SimResult]") -> None:
    from rich.console import Console
    from rich.table import Table

    sizes = f"{len(trace.layers)} layers, {trace.num_experts} experts, top-{trace.top_k}"
    title = f"{name}: {trace.num_tokens:,} tokens, {sizes}"
    table = Table(title=title, title_justify="left")
    timed = results[0].seconds is not None
    figures = ["hit", "late", "cold", "collision", "prefetched", "wasted", "read"]
    in_place = any(result.experts.computed_in_place for result in results)
    table.add_column("policy", overflow="fold", min_width=16)
    drafted = results[0].draft is not None
    more = {"in place": in_place, "tokens/window": drafted, "foretold": drafted, "ms/token": timed}
    for column in ("memory", "slots", *figures, *(name for name, shown in more.items() if shown)):
        table.add_column(column, justify="right", no_wrap=True)
    for result in results:
        stats = result.experts
        misses = (stats.late, stats.cold_misses, stats.collision_misses)
        counts = (*misses, stats.prefetched, stats.wasted, result.transfers)
        table.add_row(
            _short(result.policy),
            result.capacity,
            f"{result.num_slots:,}",
            f"{result.hit_rate:.1%}",
            *(f"{count:,}" for count in counts),
            *((f"{stats.computed_in_place:,}",) if in_place else ()),
            *simulate_draft.cells(result.draft),
            *((f"{result.ms_per_token:.2f}",) if timed else ()),
        )
    # A file or a pipe has no width; figures must not be cut for it.
    Console(width=None if sys.stdout.isatty() else 140).print(table)
    if timed:
        print("Times are of the declared link and compute model, not measured.")
    if drafted:
        print("What the draft proposes is drawn at the declared acceptance and recall, not measured.")


def _short(policy: str) -> str:
    """Without what is so by default."""
    evict, *kept = policy.split(",")
    for part in tuple(kept):
        fewer = [other for other in kept if other != part]
        if _means(",".join([evict, *fewer]), policy):
            kept = fewer
    return ",".join([evict, *kept])


def _means(text: str, policy: str) -> bool:
    from smoe.offload.policies.spec import parse_policies

    try:
        return str(parse_policies(text)) == policy
    except ConfigError:
        return False


def _positive(name: str, text: str | None) -> int | None:
    value = integer(name, text)
    if value is not None and value < 1:
        raise ConfigError(name, value, "integer >= 1")
    return value


def _seed(text: str | None) -> int:
    value = integer("seed", text)
    if value is not None and value < 0:
        raise ConfigError("seed", value, "integer >= 0")
    return value or 0


def _share(text: str | None) -> float | None:
    value = number("pause_share", text)
    if value is not None and not 0 <= value <= 1:
        raise ConfigError("pause_share", value, "0 to 1")
    return value


def _prefetches(policy: str) -> bool:
    from smoe.offload.policies.spec import parse_policies

    return parse_policies(policy).prefetch.name != "none"
