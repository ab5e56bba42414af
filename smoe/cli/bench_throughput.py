"""`smoe bench throughput`."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from smoe.cli import options, slo_options
from smoe.cli.deployment import resolve
from smoe.cli.engine_options import EXPERTS, takes
from smoe.cli.progress import Progress
from smoe.cli.slo_options import listed, whole
from smoe.core.errors import ConfigError

EXAMPLE = options.example("smoe bench throughput --in-process --expert-memory 25% --batch 1,8,32")


@takes(
    "model",
    "dtype",
    *EXPERTS,
    "expert_link",
    "draft",
    "draft_tokens",
    "max_num_batched_tokens",
    "threads",
    "tensor_parallel_size",
    "data_parallel_size",
    "schedule",
    "placement",
    before="in_process",
)
def command(
    ctx: typer.Context,
    config: options.ConfigFile = None,
    batch: Annotated[
        str, typer.Option("--batch", metavar="N,...", help="How many requests are in flight.")
    ] = "1,2,4,8,16,32",
    input_len: Annotated[str, typer.Option("--input-len", metavar="N", help="Tokens of a prompt.")] = "128",
    output_len: Annotated[str, typer.Option("--output-len", metavar="N", help="Tokens of an answer.")] = "64",
    rounds: Annotated[
        str, typer.Option("--rounds", metavar="N", help="A run answers N times as many requests as are in flight.")
    ] = "2",
    repeats: Annotated[str, typer.Option("--repeats", metavar="N", help="Runs of each batch, in turn.")] = "3",
    prompts: slo_options.Prompts = "mixed",
    seed: options.Seed = None,
    in_process: options.InProcess = False,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the result file goes.")] = Path(
        "benchmarks/results"
    ),
) -> None:
    """Tokens a second of an engine without a server: closed-loop batches of requests with prompts and answers of fixed
    lengths, through Ray actors or in this process."""
    deployment = resolve(ctx, config, in_process=in_process)
    sizes = sorted({whole("batch", part) for part in listed("batch", batch)})
    engine = deployment.engine_config()
    engine = replace(engine, max_num_seqs=max(engine.max_num_seqs, sizes[-1]))
    counts = {
        "input_len": whole("input_len", input_len),
        "output_len": whole("output_len", output_len),
        "rounds": whole("rounds", rounds),
        "repeats": whole("repeats", repeats),
        "seed": whole("seed", seed or "0", low=0),
    }

    from smoe.bench.result import print_figures
    from smoe.bench.slo.corpus import corpus
    from smoe.bench.throughput import Batches, run
    from smoe.cli import preflight
    from smoe.llm import open_client

    checked = preflight.check(engine)
    if checked.tokenizer is None:
        raise ConfigError("model", engine.model, "a folder with a tokenizer")
    length = counts["input_len"] + counts["output_len"]
    if length > checked.info.max_model_len:
        raise ConfigError("input_len", length, f"with output_len at most the context, {checked.info.max_model_len}")
    text = corpus(prompts, checked.tokenizer.encode)
    batches = Batches(sizes=sizes, **counts)
    setting = {**asdict(engine), **asdict(batches), "prompts": prompts, "through": "engine" if in_process else "Ray"}
    done = 0
    client = open_client(engine, distributed=not in_process, cluster=None if in_process else deployment.cluster)
    try:
        with Progress("runs", len(sizes) * (batches.repeats + 1)) as progress:

            def on_run() -> None:
                nonlocal done
                done += 1
                progress.update(done)

            result = run(client, batches, text, setting, on_run)
    finally:
        client.shutdown()
    print_figures(result.summary, "throughput")
    print(result.write(out))
