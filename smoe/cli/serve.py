"""`smoe serve`: OpenAI's HTTP interface to a model."""

import os
from dataclasses import fields
from typing import Annotated

import typer

from smoe.cli import options
from smoe.cli.deployment import print_resolved, resolve
from smoe.cli.engine_options import DRAFT, EXPERTS, PARALLEL, takes
from smoe.core.serve_config import ServeConfig
from smoe.server.config import ServerConfig

NAME = "serve"
EXAMPLE = options.example("smoe serve --model builtin --expert-memory 25% --port 8000")
KEY_VARIABLE = "SMOE_API_KEY"
DEFAULT = ServeConfig()


@takes(
    "model",
    "max_num_seqs",
    "max_num_batched_tokens",
    "dtype",
    *EXPERTS,
    "expert_memory_max",
    "expert_link",
    *DRAFT,
    "max_model_len",
    "threads",
    *PARALLEL,
    before="in_process",
)
def command(
    ctx: typer.Context,
    config: options.ConfigFile = None,
    host: Annotated[str, typer.Option("--host", metavar="HOST", help="Address to listen on.")] = DEFAULT.host,
    port: Annotated[str, typer.Option("--port", metavar="N", help="0 takes a free one.")] = str(DEFAULT.port),
    served_model_name: Annotated[
        str | None,
        typer.Option("--served-model-name", metavar="NAME", help="What clients call it; default: the folder's name."),
    ] = None,
    replicas: Annotated[
        str, typer.Option("--replicas", metavar="N", help="Servers with an engine each, to which requests are dealt.")
    ] = str(DEFAULT.replicas),
    ingress: Annotated[
        str,
        typer.Option("--ingress", metavar="NAME", help="What listens: ray-serve (the default), or direct, without it."),
    ] = DEFAULT.ingress,
    api_key: Annotated[
        str | None,
        typer.Option("--api-key", metavar="KEY", help=f"Clients have to know it; default: that in {KEY_VARIABLE}."),
    ] = None,
    max_queue: Annotated[
        str, typer.Option("--max-queue", metavar="N", help="Answers in flight at most, a replica; more get 429.")
    ] = str(DEFAULT.max_queue),
    max_body_bytes: Annotated[
        str, typer.Option("--max-body-bytes", metavar="N", help="Of one request; larger ones get 413.")
    ] = str(DEFAULT.max_body_bytes),
    request_timeout: Annotated[
        str, typer.Option("--request-timeout", metavar="S", help="Seconds from a request to its last token.")
    ] = f"{DEFAULT.request_timeout_s:g}",
    drain_timeout: Annotated[
        str, typer.Option("--drain-timeout", metavar="S", help="Seconds for answers in flight once asked to end.")
    ] = f"{DEFAULT.drain_s:g}",
    metrics_reset: Annotated[
        bool, typer.Option("--metrics-reset", help="Let clients begin the counts of /metrics anew: DELETE /metrics.")
    ] = False,
    in_process: options.InProcess = False,
    print_config: options.PrintConfig = False,
) -> int:
    """Serve a model over HTTP as OpenAI's API has it: by Ray Serve, or in this process. Answers /health with 503 until
    the model is loaded. SIGTERM or Ctrl-C ends it when the answers in flight have ended, a second one at once."""
    deployment = resolve(ctx, config, in_process=in_process)
    if print_config:
        return print_resolved(deployment)
    from smoe.cli import preflight, serving

    serve = {each.name: getattr(deployment.serve, each.name) for each in fields(ServeConfig)}
    server = ServerConfig(**serve, api_key=_key(api_key))
    engine = deployment.engine_config()
    name = server.served_model_name or preflight.check(engine).info.name
    if in_process:
        from smoe.llm import open_client

        return serving.listen(lambda: open_client(engine, distributed=False), name, server)
    run = serving.deploy if server.ingress == "ray-serve" else serving.listen_over_actors
    return run(engine, deployment.cluster, name, server)


def _key(given: str | None) -> str | None:
    """An empty one given stays empty and is refused: a variable that is not set must not open the server to all."""
    return os.environ.get(KEY_VARIABLE) or None if given is None else given
