"""`smoe trace`: look into, import, merge and split route traces."""

from pathlib import Path
from typing import Annotated, cast

import typer

from smoe.cli import options
from smoe.cli.values import integer, no_effect, number
from smoe.core.errors import ConfigError

NAME = "trace"
EXAMPLE = options.example("smoe trace info routes.safetensors")

app = typer.Typer(help="Look into, import, merge and split route traces.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _group() -> None:
    """Look into, import, merge and split route traces."""


@app.command("info", epilog=EXAMPLE)
def info_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A route trace, as `generate --record-routes` writes.")],
    json: Annotated[bool, typer.Option("--json", help="Print the summary as a JSON object.")] = False,
) -> None:
    """Check a route trace and sum it up: sizes, and load and reuse of experts a layer."""
    from smoe.core.route_summary import summarize
    from smoe.core.route_trace import read_route_trace

    summary = summarize(read_route_trace(file))
    if json:
        import json as json_module

        print(json_module.dumps(summary, indent=1))
        return
    from rich.console import Console
    from rich.table import Table

    layers = summary.pop("layers")
    totals = Table(show_header=False, title=str(file), title_justify="left")
    labels = summary.pop("labels")
    summary["labels"] = ", ".join(f"{label or 'none'} {count:,}" for label, count in labels.items()) or "none"
    for name, value in summary.items():
        totals.add_row(name.replace("_", " "), f"{value:,}" if type(value) is int else str(value))
    table = Table(show_footer=False)
    for name in ("layer", "experts used", "load max / mean", "repeat share"):
        table.add_column(name, justify="right")
    for layer in layers:
        figures = (f"{layer['load_max_over_mean']:.2f}", f"{layer['repeat_share']:.1%}")
        table.add_row(str(layer["layer"]), str(layer["experts_used"]), *figures)
    console = Console()
    console.print(totals)
    console.print(table)


Out = Annotated[Path, typer.Option("--out", metavar="FILE", help="The new trace; compressed if it ends in .gz.")]
SeedOption = Annotated[str, typer.Option("--seed", metavar="N", help="Draws the sequences.")]

IMPORT_EXAMPLE = options.example("smoe trace import gpt_oss_20b_decode.npz --out gpt-oss-20b.safetensors")


@app.command("import", epilog=IMPORT_EXAMPLE)
def import_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An .npz file of routes, or an .npy array.")],
    out: Out,
    weights: Annotated[
        Path | None, typer.Option("--weights", metavar="FILE", help="The .npz file with the router weights.")
    ] = None,
    task: Annotated[
        str | None, typer.Option("--task", metavar="NAME", help="One task of a file that holds several; default: all.")
    ] = None,
    dataset: Annotated[
        list[str] | None,
        typer.Option("--dataset", metavar="NAME", help="Only sequences of this data set; may be repeated."),
    ] = None,
    without_repetition: Annotated[
        bool, typer.Option("--without-repetition", help="Leave out sequences that the file flags as loops.")
    ] = False,
    num_experts: Annotated[
        str | None,
        typer.Option("--num-experts", metavar="N", help="Of a layer; .npy arrays [tokens, layers(, k)] need it."),
    ] = None,
    sequence_length: Annotated[
        str | None,
        typer.Option("--sequence-length", metavar="N", help="Take each N rows of an .npy array for a sequence."),
    ] = None,
    incomplete: Annotated[
        str | None,
        typer.Option(
            "--incomplete",
            metavar="RULE",
            help="Where ids are missing leave out the `tokens` (the default) or the `layers`.",
        ),
    ] = None,
    max_tokens: Annotated[
        str | None, typer.Option("--max-tokens", metavar="N", help="Draw sequences up to N tokens; default: all.")
    ] = None,
    max_sequence: Annotated[
        str | None, typer.Option("--max-sequence", metavar="N", help="Of each drawn sequence the first N tokens.")
    ] = None,
    seed: SeedOption = "0",
) -> None:
    """Make a route trace from routes that others recorded."""
    from smoe.core.route_edit import sample_sequences
    from smoe.core.route_import import NOT_COMPUTED_RULES, Incomplete, import_routes
    from smoe.core.route_import_npy import import_npy
    from smoe.core.route_trace import write_route_trace

    if incomplete is not None and incomplete not in NOT_COMPUTED_RULES:
        raise ConfigError("incomplete", incomplete, f"one of {', '.join(NOT_COMPUTED_RULES)}")
    tokens, longest = (_positive(n, v) for n, v in (("max_tokens", max_tokens), ("max_sequence", max_sequence)))
    if longest is not None and tokens is None:
        raise no_effect("max_sequence", longest, "--max-tokens")
    array = {n: _positive(n, v) for n, v in (("num_experts", num_experts), ("sequence_length", sequence_length))}
    routes = {"weights": weights, "task": task, "dataset": dataset, "incomplete": incomplete}
    if file.suffix == ".npy":
        for name, value in (*routes.items(), ("without_repetition", without_repetition or None)):
            if value is not None:
                raise ConfigError(name, value, f"has no effect on {file}: it is one array")
        if array["num_experts"] is None:
            raise ConfigError("num_experts", None, f"the number of experts of a layer, which {file} does not tell")
        trace = import_npy(file, num_experts=array["num_experts"], sequence_length=array["sequence_length"])
    else:
        for name, size in array.items():
            if size is not None:
                raise ConfigError(name, size, f"has no effect on {file}: only on an .npy array")
        trace = import_routes(
            file,
            weights=weights,
            task=task,
            datasets=dataset or (),
            without_repetition=without_repetition,
            incomplete=cast(Incomplete, incomplete or "tokens"),
        )
    if tokens is not None:
        trace = sample_sequences(trace, tokens, longest=longest, seed=_seed(seed))
    write_route_trace(out, trace)
    print(f"{out}: {trace.num_sequences} sequences, {trace.num_tokens} tokens")


@app.command(
    "merge", epilog=options.example("smoe trace merge monday.safetensors tuesday.safetensors --out both.safetensors")
)
def merge_command(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Two or more traces of one model.")],
    out: Out,
) -> None:
    """Put the sequences of several traces into one."""
    from smoe.core.route_edit import merge
    from smoe.core.route_trace import read_route_trace, write_route_trace

    if len(files) < 2:
        raise ConfigError("files", len(files), "two or more traces")
    trace = merge([read_route_trace(file) for file in files], [str(file) for file in files])
    write_route_trace(out, trace)
    print(f"{out}: {trace.num_sequences} sequences, {trace.num_tokens} tokens")


@app.command(
    "split",
    epilog=options.example(
        "smoe trace split routes.safetensors --fraction 0.8 --out train.safetensors --rest heldout.safetensors"
    ),
)
def split_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A route trace.")],
    fraction: Annotated[str, typer.Option("--fraction", metavar="X", help="Share of the sequences for --out.")],
    out: Out,
    rest: Annotated[Path, typer.Option("--rest", metavar="FILE", help="The trace of the other sequences.")],
    seed: SeedOption = "0",
) -> None:
    """Share the sequences of a trace between two: to learn from, and to judge by."""
    from smoe.core.route_edit import split
    from smoe.core.route_trace import read_route_trace, write_route_trace

    share = number("fraction", fraction)
    assert share is not None
    if out == rest:
        raise ConfigError("rest", str(rest), "another file than --out")
    for path, part in zip((out, rest), split(read_route_trace(file), share, seed=_seed(seed)), strict=True):
        write_route_trace(path, part)
        print(f"{path}: {part.num_sequences} sequences, {part.num_tokens} tokens")


def _positive(name: str, text: str | None) -> int | None:
    value = integer(name, text)
    if value is not None and value < 1:
        raise ConfigError(name, value, "integer >= 1")
    return value


def _seed(text: str) -> int:
    value = integer("seed", text)
    if value is None or value < 0:
        raise ConfigError("seed", text, "integer >= 0")
    return value
