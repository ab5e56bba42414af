"""`smoe bench slo`."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from smoe.cli import options, slo_options
from smoe.cli.slo_loads import loads
from smoe.cli.slo_options import positive, whole
from smoe.cli.slo_place import KEY_VARIABLE, place

if TYPE_CHECKING:
    from smoe.bench.slo.study import Point, Study
    from smoe.workload.demand import Demand

EXAMPLE = options.example("smoe bench slo --workload azure-conv --rates auto --goodput ttft:500 tpot:50 tbt_p90:100")
_TEXT_ROOM = 16
"""Tokens kept free when prompts go out as text: the server may cut it otherwise, or put a template around it."""


def command(
    limits: slo_options.Limits = None,
    goodput: slo_options.Goodput = None,
    percent: slo_options.Percent = "99",
    rates: slo_options.Rates = None,
    start_rate: slo_options.StartRate = None,
    tolerance: slo_options.Tolerance = None,
    max_concurrency: Annotated[
        str | None,
        typer.Option("--max-concurrency", metavar="N,...", help="Instead of rates: keep so many in flight."),
    ] = None,
    arrival: slo_options.Arrival = None,
    workload: slo_options.Workload = None,
    skip_bad_rows: slo_options.SkipBadRows = False,
    input_len: slo_options.InputLen = None,
    output_len: slo_options.OutputLen = None,
    len_spread: slo_options.LenSpread = None,
    num_requests: slo_options.NumRequests = "100",
    prompts: slo_options.Prompts = "mixed",
    seed: options.Seed = None,
    repeats: Annotated[str, typer.Option("--repeats", metavar="N", help="Runs of each load, with other seeds.")] = "2",
    warmup: Annotated[str, typer.Option("--warmup", metavar="N", help="Requests before all, not counted.")] = "8",
    base_url: Annotated[
        str | None,
        typer.Option(
            "--base-url", metavar="URL", help="A running OpenAI-compatible server, instead of one of our own."
        ),
    ] = None,
    serve: Annotated[
        str | None,
        typer.Option("--serve", metavar="FLAGS", help="Of our own `smoe serve`; default: --in-process."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="DIR|NAME", help="A folder for our own server; what another one calls it."),
    ] = None,
    api_key: Annotated[
        str | None, typer.Option("--api-key", metavar="KEY", help=f"Of --base-url; default: that in {KEY_VARIABLE}.")
    ] = None,
    endpoint: Annotated[
        str, typer.Option("--endpoint", metavar="NAME", help="completions, or chat: prompts as a user's message.")
    ] = "completions",
    tokenizer: Annotated[
        str | None,
        typer.Option(
            "--tokenizer", metavar="DIR|builtin", help="The tokenizer of --base-url; without it prompts go out as text."
        ),
    ] = None,
    max_model_len: options.MaxModelLen = None,
    no_ignore_eos: Annotated[
        bool, typer.Option("--no-ignore-eos", help="Let answers end by themselves; for servers without ignore_eos.")
    ] = False,
    request_timeout: Annotated[
        str, typer.Option("--request-timeout", metavar="S", help="Seconds; a longer request has failed.")
    ] = "600",
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where result, raw times and pictures go.")] = Path(
        "benchmarks/results"
    ),
) -> None:
    """How many requests a second a server bears while a share of them meets TTFT, TPOT and TBT limits: an open-loop
    client for any OpenAI-compatible server, sweeps and a search, on real arrival traces."""
    slo = slo_options.objectives(goodput, limits)
    asked = slo_options.demand(
        workload=workload,
        skip_bad_rows=skip_bad_rows,
        input_len=input_len,
        output_len=output_len,
        len_spread=len_spread,
        num_requests=num_requests,
        arrival=arrival,
        seed=seed,
    )
    load = loads(rates, start_rate, tolerance, max_concurrency, arrival, searchable=bool(slo.limits_ms))
    server = place(base_url, serve, model, api_key, endpoint, tokenizer)
    share = slo_options.share(percent)
    counts = {"repeats": whole("repeats", repeats), "warmup": whole("warmup", warmup, low=0)}
    timeout_s = positive("request_timeout", request_timeout)

    from smoe.bench.result import print_figures
    from smoe.bench.slo.card import read_card
    from smoe.bench.slo.client import Target
    from smoe.bench.slo.corpus import corpus
    from smoe.bench.slo.plot import plot
    from smoe.bench.slo.raw import write_raw
    from smoe.bench.slo.run import headline, result_of, search, sweep
    from smoe.bench.slo.study import Study
    from smoe.bench.slo.table import one_line, print_points

    words = server.load_tokenizer()
    text = corpus(prompts, words.encode)
    as_text = server.as_text
    with server.open() as url:
        card = read_card(url, server.name, server.api_key)
        study = Study(
            target=Target(
                base_url=url,
                model=card.name,
                api_key=server.api_key,
                endpoint="chat" if endpoint == "chat" else "completions",
                timeout_s=timeout_s,
                extra={} if no_ignore_eos else {"ignore_eos": True},
            ),
            demand=_fitted(asked, max_model_len, card.max_model_len, as_text=as_text),
            slo=slo,
            text=text,
            decode=words.decode if as_text else None,
            repeats=counts["repeats"],
        )
        _say(study, closed=max_concurrency is not None)
        study.warm_up(counts["warmup"])

        def on_point(runs: "Sequence[Point]") -> None:
            print(one_line(runs), file=sys.stderr, flush=True)

        if load.offers is None:
            points = search(study, share, load.start_rate, load.tolerance, on_point)
        else:
            points = sweep(study, load.offers, on_point)
    config = {
        "server": server.described,
        "model": card.name,
        "endpoint": endpoint,
        "workload": workload or "made up",
        "num_requests": study.demand.num_requests,
        "input_len": None if workload else study.demand.input_len,
        "output_len": None if workload else study.demand.output_len,
        "len_spread": None if workload else study.demand.len_spread,
        "max_model_len": study.demand.max_model_len,
        "length_scale": study.demand.requests().scale,
        "arrival": None if max_concurrency else str(asked.process),
        "prompts": prompts,
        "prompts_as": "text" if as_text else "token ids",
        "ignore_eos": not no_ignore_eos,
        "seed": asked.seed,
        "slo": str(slo),
        "percent": 100 * share,
        **counts,
    }
    result = result_of(study, points, share, config)
    print_points(points)
    print_figures(headline(study, points, share), "slo")
    print(result.write(out))
    title = f"{card.name} by {server.described}; {workload or 'made-up lengths'}, {asked.num_requests} requests a run"
    for path in (*write_raw(points, out), *plot(points, slo, 100 * share, out, title)):
        print(path)


def _fitted(asked: "Demand", given: str | None, known: int | None, *, as_text: bool) -> "Demand":
    length = known if given is None else whole("max_model_len", given, low=2)
    if length is None:
        return asked
    return replace(asked, max_model_len=max(2, length - _TEXT_ROOM) if as_text else length)


def _say(study: "Study", *, closed: bool) -> None:
    drawn = "closed loop" if closed else f"arrivals {study.demand.process}"
    print(f"{study.demand.described()}, {drawn}, seed {study.demand.seed}", file=sys.stderr)
