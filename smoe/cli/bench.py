"""`smoe bench`: figures of this machine, with their goals and bounds, in a result file."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from smoe.cli import (
    bench_comm,
    bench_compare,
    bench_quality,
    bench_regroup,
    bench_serve,
    bench_slo,
    bench_speculation,
    bench_throughput,
    options,
)
from smoe.cli.progress import Progress
from smoe.core.cache_root import cache_root

NAME = "bench"
EXAMPLE = options.example("smoe bench decode --quick")
CACHE_EXAMPLE = options.example("smoe bench cache --quick")
OFFLOAD_EXAMPLE = options.example("smoe bench offload --quick --policies evict=lru,prefetch=gate")

Quick = Annotated[bool, typer.Option("--quick", help="Fewer repeats and steps: minutes.")]
Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the result file goes.")]
Cache = Annotated[
    Path | None, typer.Option("--cache", metavar="DIR", help="Keeps the 4.9 GB model; default ~/.cache/smoe.")
]
RESULTS = Path("benchmarks/results")

app = typer.Typer(help="Measure this machine.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _group() -> None:
    """Measure this machine."""


@app.command("decode", epilog=EXAMPLE)
def decode_command(
    quick: Quick = False,
    out: Out = RESULTS,
    cache: Cache = None,
    skip_inflated: Annotated[bool, typer.Option("--skip-inflated", help="Leave the 4.9 GB model out.")] = False,
) -> None:
    """Decode and prefill speed against transformers, Python overhead, share of the memory bound."""
    from smoe.bench.decode.run import run
    from smoe.bench.result import print_figures
    from smoe.llm import open_client

    result = run(
        lambda config, distributed: open_client(config, distributed=distributed),
        quick=quick,
        cache=None if skip_inflated else cache or cache_root(),
    )
    print_figures(result.summary, "decode")
    print(result.write(out))


@app.command("offload", epilog=OFFLOAD_EXAMPLE)
def offload_command(
    quick: Quick = False,
    out: Out = RESULTS,
    cache: Cache = None,
    policies: Annotated[
        str | None, typer.Option("--policies", metavar="TEXT", help="What demand LRU is compared with, as evict=fifo.")
    ] = None,
    skip_peers: Annotated[bool, typer.Option("--skip-peers", help="Leave transformers and llama.cpp out.")] = False,
) -> None:
    """Decode speed of a model larger than its memory over capacity: share of the bound, peers under one limit."""
    from smoe.bench.offload.run import CHOSEN, run
    from smoe.bench.result import print_figures

    result = run(
        quick=quick, cache=cache or cache_root(), out=out, policies=policies or CHOSEN, with_peers=not skip_peers
    )
    print_figures(result.summary, "offload")
    print(result.write(out))


app.command("comm", epilog=bench_comm.EXAMPLE)(bench_comm.command)
app.command("quality", epilog=bench_quality.EXAMPLE)(bench_quality.command)
app.command("regroup", epilog=bench_regroup.EXAMPLE)(bench_regroup.command)
app.command("compare", epilog=bench_compare.EXAMPLE)(bench_compare.command)
app.command("serve", epilog=bench_serve.EXAMPLE)(bench_serve.command)
app.command("slo", epilog=bench_slo.EXAMPLE)(bench_slo.command)
app.command("speculation", epilog=bench_speculation.EXAMPLE)(bench_speculation.command)
app.command("throughput", epilog=bench_throughput.EXAMPLE)(bench_throughput.command)


@app.command("cache", epilog=CACHE_EXAMPLE)
def cache_command(
    quick: Quick = False,
    out: Out = RESULTS,
    trace: Annotated[
        str | None,
        typer.Option(
            "--trace",
            metavar="FILE|NAME",
            help="Of one trace, repeated up to there: 100 combinations over 100,000 tokens.",
        ),
    ] = None,
    in_process: Annotated[bool, typer.Option("--in-process", help="On one core, without Ray.")] = False,
) -> None:
    """Every eviction policy against every prefetch, capacity and pool, by simulation: who wins where, and why."""
    from smoe.bench.cache.run import run
    from smoe.bench.result import print_figures

    def fan_out(function: Any, items: Any, common: Any) -> Any:
        from smoe.actors.sweep import fan_out as over_cores

        return over_cores(function, items, common, jobs=os.cpu_count() or 1)

    with Progress("combinations", 0) as progress:
        result = run(
            quick=quick,
            out=out,
            trace=trace,
            fan_out=None if in_process else fan_out,
            on_progress=progress.update,
        )
    print_figures(result.summary, "cache")
    print(result.write(out))
