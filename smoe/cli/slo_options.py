"""Options about load and objectives, and what they say."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from smoe.cli.values import integer, no_effect, number
from smoe.core.errors import ConfigError

if TYPE_CHECKING:
    from smoe.metrics.slo import Slo
    from smoe.workload.demand import Demand

AUTO, OWN = "auto", "own"

Prompts = Annotated[
    str,
    typer.Option(
        "--prompts", metavar="SET", help="What prompts are cut from: mixed, prose, dialogue, code, maths, gsm8k."
    ),
]

Workload = Annotated[
    str | None,
    typer.Option(
        "--workload",
        metavar="NAME|FILE",
        help="A request trace: azure-conv, azure-code, mooncake-conversation, mooncake-synthetic, or a file of their "
        "formats (.csv, .jsonl, also with .gz). Its lengths, scaled to the context; its times with --arrival trace.",
    ),
]
SkipBadRows = Annotated[
    bool, typer.Option("--skip-bad-rows", help="Count malformed rows of the trace instead of refusing it.")
]
InputLen = Annotated[
    str | None, typer.Option("--input-len", metavar="N", help="Tokens of a prompt, without a trace. Default 128.")
]
OutputLen = Annotated[
    str | None, typer.Option("--output-len", metavar="N", help="Tokens of an answer, without a trace. Default 32.")
]
LenSpread = Annotated[
    str | None,
    typer.Option("--len-spread", metavar="X", help="Lengths from 1 - X to 1 + X times those. Default 0: all alike."),
]
NumRequests = Annotated[str, typer.Option("--num-requests", metavar="N", help="Of each run.")]
Arrival = Annotated[
    str | None,
    typer.Option(
        "--arrival",
        metavar="PROCESS",
        help="poisson (the default), gamma:CV, constant, or trace: the workload's own times, stretched to each rate.",
    ),
]
Goodput = Annotated[
    list[str] | None,
    typer.Option(
        "--goodput",
        metavar="NAME:MS",
        help="What a request has to meet: --goodput ttft:500 tpot:50 tbt_p90:100 (ttft, tpot, e2el, tbt_pN: the N-th "
        "percentile of its gaps between chunks).",
    ),
]
Limits = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NAME:MS]...", help="Further limits after --goodput.", show_default=False),
]
Rates = Annotated[
    str | None,
    typer.Option(
        "--rates",
        metavar="R,...|auto",
        help="Requests a second; auto (the default) searches for the highest that meets the objectives, own is that of "
        "--arrival trace.",
    ),
]
StartRate = Annotated[str | None, typer.Option("--start-rate", metavar="R", help="Where the search begins. Default 1.")]
Tolerance = Annotated[
    str | None, typer.Option("--tolerance", metavar="X", help="The search ends between two rates this close.")
]
Percent = Annotated[
    str, typer.Option("--percent", metavar="P", help="The share of requests that has to meet the objectives.")
]


def objectives(goodput: Sequence[str] | None, limits: Sequence[str] | None) -> "Slo":
    """Raises ConfigError."""
    from smoe.metrics.slo import Slo

    if limits and not goodput:
        raise ConfigError("goodput", " ".join(limits), "limits follow --goodput")
    return Slo.parse([part for text in (*(goodput or ()), *(limits or ())) for part in text.split()])


def share(percent: str) -> float:
    """From per cent. Raises ConfigError."""
    value = number("percent", percent)
    if value is None or not 0 < value <= 100:
        raise ConfigError("percent", percent, "above 0, up to 100")
    return value / 100


def demand(
    *,
    workload: str | None,
    skip_bad_rows: bool,
    input_len: str | None,
    output_len: str | None,
    len_spread: str | None,
    num_requests: str,
    arrival: str | None,
    seed: str | None,
) -> "Demand":
    """Raises ConfigError or TraceError, before anything starts."""
    from smoe.workload.arrivals import ArrivalProcess
    from smoe.workload.demand import Demand

    for name, value in (("input_len", input_len), ("output_len", output_len), ("len_spread", len_spread)):
        if workload is not None and value is not None:
            raise ConfigError(name, value, "not with --workload, which has lengths of its own")
    process = ArrivalProcess.parse(arrival or "poisson")
    if workload is None and skip_bad_rows:
        raise no_effect("skip_bad_rows", True, "--workload")
    if workload is None and process.kind == "trace":
        raise no_effect("arrival", arrival, "--workload")
    spread = number("len_spread", len_spread)
    chosen = Demand(
        num_requests=whole("num_requests", num_requests),
        trace=workload,
        skip_bad_rows=skip_bad_rows,
        input_len=whole("input_len", input_len or "128"),
        output_len=whole("output_len", output_len or "32"),
        len_spread=0.0 if spread is None else spread,
        process=process,
        seed=whole("seed", seed or "0", low=0),
    )
    chosen.requests()
    return chosen


def rates_of(rates: str | None, arrival: str | None, *, searchable: bool) -> list[float | None] | None:
    """In ascending order, None in it for a trace's own; None alone: search. Raises ConfigError."""
    if rates is None and arrival == "trace" and not searchable:
        return [None]
    if rates in (None, AUTO):
        if not searchable:
            raise ConfigError("rates", rates or AUTO, "needs --goodput, or rates to sweep, as in --rates 1,2,4")
        return None
    parts = listed("rates", rates or "")
    if OWN in parts and arrival != "trace":
        raise ConfigError("rates", OWN, "only with --arrival trace: nothing else has a rate of its own")
    given = sorted(positive("rates", part) for part in parts if part != OWN)
    return [None, *given] if OWN in parts else [*given]


def whole(field: str, text: str, low: int = 1) -> int:
    value = integer(field, text)
    if value is None or value < low:
        raise ConfigError(field, text, f"integer >= {low}")
    return value


def positive(field: str, text: str) -> float:
    value = number(field, text)
    if value is None or not 0 < value < float("inf"):
        raise ConfigError(field, text, "a number above 0")
    return value


def listed(field: str, text: str) -> list[str]:
    """Between commas. Raises ConfigError for an empty part."""
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise ConfigError(field, text, "values between commas")
    return parts
