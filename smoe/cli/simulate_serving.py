"""`smoe simulate serving`: how many requests a second hardware would serve within an SLO, in virtual time."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from smoe.cli import options, slo_options
from smoe.cli.simulated_engines import KV_ROWS, Hardware
from smoe.cli.slo_options import positive, rates_of, whole
from smoe.cli.values import no_effect, number
from smoe.core.errors import ConfigError

NAME = "serving"
EXAMPLE = options.example(
    "smoe simulate serving --topology 8xh100-pcie --model-shape deepseek-v2 --schedule allreduce,speculative "
    "--lar 0.38 --num-requests 50 --goodput ttft:500 tpot:50"
)


def command(
    limits: slo_options.Limits = None,
    goodput: slo_options.Goodput = None,
    percent: slo_options.Percent = "99",
    rates: slo_options.Rates = None,
    start_rate: slo_options.StartRate = None,
    tolerance: slo_options.Tolerance = None,
    arrival: slo_options.Arrival = None,
    workload: slo_options.Workload = None,
    skip_bad_rows: slo_options.SkipBadRows = False,
    input_len: slo_options.InputLen = None,
    output_len: slo_options.OutputLen = None,
    len_spread: slo_options.LenSpread = None,
    num_requests: slo_options.NumRequests = "200",
    min_duration: Annotated[
        str,
        typer.Option("--min-duration", metavar="S", help="More requests where they would come in fewer seconds."),
    ] = "10",
    max_model_len: options.MaxModelLen = None,
    seed: options.Seed = None,
    step_profile: Annotated[
        Path | None,
        typer.Option(
            "--step-profile",
            metavar="FILE",
            help="Steps as `smoe profile steps` measured them somewhere; with its --front, also served over HTTP.",
        ),
    ] = None,
    topology: Annotated[
        str | None,
        typer.Option(
            "--topology",
            metavar="NAME|FILE",
            help="Several devices by their rates and links, tensor and expert parallel: 8xh100-nvlink, 8xh100-pcie.",
        ),
    ] = None,
    model_shape: Annotated[
        str | None,
        typer.Option(
            "--model-shape",
            metavar="NAME|FILE",
            help="With --topology: deepseek-v2, mixtral-8x7b, or a model's config.json.",
        ),
    ] = None,
    schedule: Annotated[
        str | None,
        typer.Option(
            "--schedule",
            metavar="NAME,...",
            help="With --topology: allreduce, scatter, speculative. Default allreduce,scatter.",
        ),
    ] = None,
    lar: Annotated[
        str | None,
        typer.Option(
            "--lar", metavar="X", help="Of speculative: choices computed where their row is; others have 1 / devices."
        ),
    ] = None,
    imbalance: Annotated[
        str | None,
        typer.Option("--imbalance", metavar="X", help="Work of the busiest device over the mean. Default 1."),
    ] = None,
    no_dedup: Annotated[
        bool, typer.Option("--no-dedup", help="A row is sent once for each of its experts, not for each device.")
    ] = False,
    trace: Annotated[
        str | None,
        typer.Option(
            "--trace", metavar="FILE|NAME", help="Experts that do not fit, by a route trace, as smoe simulate has it."
        ),
    ] = None,
    expert_memory: Annotated[
        list[str] | None,
        typer.Option("--expert-memory", metavar="SIZE", help="With --trace; repeatable. Default 25%."),
    ] = None,
    expert_policy: Annotated[
        list[str] | None,
        typer.Option("--expert-policy", metavar="POLICIES", help="With --trace; repeatable. Default evict=lru."),
    ] = None,
    link: Annotated[
        str | None, typer.Option("--link", metavar="RATE", help="With --trace: 2GB/s, or 2GB/s+0.1ms.")
    ] = None,
    compute: Annotated[
        str | None,
        typer.Option("--compute", metavar="TIMES", help="With --trace: of a layer and an expert's row, 0.3ms+50us."),
    ] = None,
    expert_bytes: Annotated[
        str | None, typer.Option("--expert-bytes", metavar="BYTES", help="Of one expert; packaged traces know theirs.")
    ] = None,
    kv_rows: Annotated[
        str | None,
        typer.Option("--kv-rows", metavar="N", help=f"Tokens that all sequences have room for. Default {KV_ROWS}."),
    ] = None,
    max_num_seqs: options.MaxNumSeqs = None,
    max_num_batched_tokens: options.MaxNumBatchedTokens = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Where a result file and a picture go.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the figures as a JSON list.")] = False,
) -> None:
    """How many requests a second hardware would serve while a share of them meets TTFT, TPOT and TBT limits, by the
    engine's own scheduler in virtual time. Nothing is measured, and every output says so."""
    slo = slo_options.objectives(goodput, limits)
    demand = slo_options.demand(
        workload=workload,
        skip_bad_rows=skip_bad_rows,
        input_len=input_len,
        output_len=output_len,
        len_spread=len_spread,
        num_requests=num_requests,
        arrival=arrival,
        seed=seed,
    )
    if max_model_len is not None:
        demand = replace(demand, max_model_len=whole("max_model_len", max_model_len, low=2))
    share, lasting = slo_options.share(percent), number("min_duration", min_duration)
    if lasting is None or not 0 <= lasting < float("inf"):
        raise ConfigError("min_duration", min_duration, "seconds, 0 or more")
    asked = rates_of(rates, arrival, searchable=bool(slo.limits_ms))
    for name, value in (("start_rate", start_rate), ("tolerance", tolerance)):
        if value is not None and asked is not None:
            raise no_effect(name, value, "--rates auto")
    hardware = Hardware(
        step_profile=step_profile,
        trace=trace,
        expert_memory=expert_memory or (),
        expert_policy=expert_policy or (),
        link=link,
        compute=compute,
        expert_bytes=expert_bytes,
        topology=topology,
        model_shape=model_shape,
        schedule=schedule,
        lar=lar,
        imbalance=imbalance,
        no_dedup=no_dedup,
        kv_rows=kv_rows,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        seed=demand.seed,
    )
    cases = hardware.cases()
    start, close = positive("start_rate", start_rate or "1"), positive("tolerance", tolerance or "0.05")

    from smoe.bench.slo.cases import plot_cases, points_of, print_cases, rate_figures, search, sweep
    from smoe.sim.serving.curve import Load

    load = Load(demand, lasting)
    if asked is None:

        def note(text: str) -> None:
            print(text, file=sys.stderr, flush=True)

        found = search(cases, load, slo, share=share, start=start, tolerance=close, note=note)
    else:
        found = sweep(cases, load, slo, asked)
    title = f"{demand.described()}, {demand.process}, seed {demand.seed}"
    if json:
        import json as json_module

        print(
            json_module.dumps([{"engine": one.case.name, **point} for one in found for point in one.points], indent=1)
        )
    else:
        print_cases(found, title)
        for figure in rate_figures(found, slo, share) if asked is None else ():
            print(f"{figure.figure}: {figure.value:.4g} {figure.unit} ({figure.bound})")
    if out is not None:
        from smoe.bench.result import Result

        config = {"simulated": True, "hardware": hardware.described(), "slo": str(slo), "percent": 100 * share}
        result = Result(name="serving-simulated", config={**config, "workload": title})
        for figure in rate_figures(found, slo, share) if asked is None else ():
            result.add(figure)
        result.samples["points"] = points_of(found)
        print(result.write(out), file=sys.stderr)
        print(plot_cases([("", found)], slo, share, out / f"{result.name}.png", title), file=sys.stderr)
