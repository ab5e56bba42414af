"""`smoe generate`: continue prompts."""

import sys
from dataclasses import replace
from typing import Annotated, cast

import typer

from smoe.cli import options
from smoe.cli.deployment import print_resolved, resolve
from smoe.cli.engine_options import DRAFT, EXPERTS, PARALLEL, takes
from smoe.cli.sampling import sampling_params
from smoe.cli.values import no_effect, number, read_text, token_ids
from smoe.core.cluster_config import ClusterConfig
from smoe.core.config import DTYPES, DType, EngineConfig
from smoe.core.errors import ConfigError
from smoe.core.sampling import SamplingParams

NAME = "generate"
EXAMPLE = options.example('smoe generate --expert-memory 25% --max-tokens 64 --prompt "Once upon a time"')

FAILED = 1


@takes("model", "dtype", *EXPERTS, "expert_link", *DRAFT, "max_model_len", "threads", *PARALLEL, before="record_routes")
def command(
    ctx: typer.Context,
    config: options.ConfigFile = None,
    prompt: Annotated[
        list[str] | None, typer.Option("--prompt", metavar="TEXT", help="Text to continue; may be repeated.")
    ] = None,
    prompt_file: Annotated[
        list[str] | None,
        typer.Option("--prompt-file", metavar="FILE", help="A file with one prompt, - is stdin; may be repeated."),
    ] = None,
    prompt_token_ids: Annotated[
        list[str] | None,
        typer.Option("--prompt-token-ids", metavar="1,2,3", help="Needs no tokenizer; may be repeated."),
    ] = None,
    max_tokens: options.MaxTokens = None,
    temperature: options.Temperature = None,
    top_p: options.TopP = None,
    top_k: options.TopK = None,
    seed: options.Seed = None,
    stop: options.Stop = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on after an end-of-text token.")] = False,
    logprobs: Annotated[
        str | None, typer.Option("--logprobs", metavar="N", help="With --json: the N likeliest tokens at each place.")
    ] = None,
    record_routes: Annotated[
        str | None, typer.Option("--record-routes", metavar="FILE", help="Write which experts ran to a route trace.")
    ] = None,
    record_fraction: Annotated[
        str | None, typer.Option("--record-fraction", metavar="X", help="Record this share of the prompts.")
    ] = None,
    record_logits: Annotated[
        bool, typer.Option("--record-logits", help="Router logits go into the route trace too.")
    ] = False,
    record_lookahead: Annotated[
        bool, typer.Option("--record-lookahead", help="What each next layer's router would say goes there too.")
    ] = False,
    in_process: options.InProcess = False,
    print_config: options.PrintConfig = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print a JSON list, one object a prompt, and nothing else.")
    ] = False,
) -> int:
    """Continue prompts: through Ray actors, or in this process."""
    params = sampling_params(
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        seed=seed,
        stop=stop,
        ignore_eos=ignore_eos,
        logprobs=logprobs,
    )
    if logprobs is not None and not json:
        raise no_effect("logprobs", logprobs, "--json")
    if record_fraction is not None and record_routes is None:
        raise no_effect("record_fraction", record_fraction, "--record-routes")
    if record_logits and record_routes is None:
        raise no_effect("record_logits", record_logits, "--record-routes")
    if record_lookahead and record_routes is None:
        raise no_effect("record_lookahead", record_lookahead, "--record-routes")
    deployment = resolve(ctx, config, in_process=in_process)
    if print_config:
        return print_resolved(deployment)
    engine = replace(
        deployment.engine_config(),
        record_routes=record_routes,
        record_fraction=1.0 if record_fraction is None else number("record_fraction", record_fraction) or 0.0,
        record_logits=record_logits,
        record_lookahead=record_lookahead,
    )
    prompts = _prompts(prompt, prompt_file, prompt_token_ids)
    cluster = None if in_process else deployment.cluster
    return _run(engine, cluster, prompts, params, json=json)


def dtype_of(text: str) -> DType:
    if text not in DTYPES:
        raise ConfigError("dtype", text, f"one of {', '.join(DTYPES)}")
    return cast(DType, text)


def _prompts(texts: list[str] | None, files: list[str] | None, ids: list[str] | None) -> list[str | tuple[int, ...]]:
    given = [
        name for name, value in (("--prompt", texts), ("--prompt-file", files), ("--prompt-token-ids", ids)) if value
    ]
    if len(given) != 1:
        limit = "exactly one of --prompt, --prompt-file, --prompt-token-ids"
        raise ConfigError("prompt", " and ".join(given) or None, limit)
    if ids:
        return [token_ids(text) for text in ids]
    if files:
        if files.count("-") > 1:
            raise ConfigError("prompt_file", "-", "stdin can be read once")
        stdin = sys.stdin.buffer.read() if "-" in files else None
        return [read_text("prompt_file", name, stdin) for name in files]
    return list(texts or ())


def _run(
    config: EngineConfig,
    cluster: ClusterConfig | None,
    prompts: list[str | tuple[int, ...]],
    params: SamplingParams,
    *,
    json: bool,
) -> int:
    """Without a `cluster`, in this process."""
    from smoe.cli import answers, preflight
    from smoe.cli.terminal import Streamer, reserved_stdout, working
    from smoe.llm import open_client

    requests = preflight.check(config).requests(prompts, params)
    with reserved_stdout() as out:
        with working("loading" if cluster is None else "starting Ray and loading"):
            client = open_client(config, distributed=cluster is not None, cluster=cluster)
        try:
            run = answers.collect(client, requests, None if json else Streamer(out, len(requests)))
        finally:
            client.shutdown()
        if json:
            answers.print_json(run, out)
        else:
            answers.print_table(run)
    return FAILED if answers.report_failures(run) else 0
