"""`smoe serve`: OpenAI's HTTP interface to a model."""

import math
import os
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from smoe.cli import options
from smoe.cli.deployment import print_resolved, resolve
from smoe.cli.values import integer, number
from smoe.core.client import EngineClient
from smoe.core.deployment import Deployment
from smoe.core.errors import ConfigError
from smoe.core.expert_tier import DEFAULT_TIER
from smoe.server.config import ServerConfig

NAME = "serve"
EXAMPLE = options.example("smoe serve --model builtin --expert-memory 25% --port 8000")
KEY_VARIABLE = "SMOE_API_KEY"


def command(
    ctx: typer.Context,
    config: options.ConfigFile = None,
    model: options.Model = "builtin",
    host: Annotated[str, typer.Option("--host", metavar="HOST", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[str, typer.Option("--port", metavar="N", help="0 takes a free one.")] = "8000",
    served_model_name: Annotated[
        str | None,
        typer.Option("--served-model-name", metavar="NAME", help="What clients call it; default: the folder's name."),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option("--api-key", metavar="KEY", help=f"Clients have to know it; default: that in {KEY_VARIABLE}."),
    ] = None,
    max_queue: Annotated[
        str, typer.Option("--max-queue", metavar="N", help="Answers in flight at most; more requests get 429.")
    ] = "256",
    max_body_bytes: Annotated[
        str, typer.Option("--max-body-bytes", metavar="N", help="Of one request; larger ones get 413.")
    ] = str(4 << 20),
    request_timeout: Annotated[
        str, typer.Option("--request-timeout", metavar="S", help="Seconds from a request to its last token.")
    ] = "600",
    drain_timeout: Annotated[
        str, typer.Option("--drain-timeout", metavar="S", help="Seconds for answers in flight once asked to end.")
    ] = "30",
    max_num_seqs: options.MaxNumSeqs = None,
    max_num_batched_tokens: options.MaxNumBatchedTokens = None,
    dtype: options.DType = "auto",
    expert_memory: options.ExpertMemoryOption = "all",
    expert_memory_max: options.ExpertMemoryMax = None,
    expert_policy: options.ExpertPolicy = None,
    expert_tier: options.ExpertTier = DEFAULT_TIER,
    expert_link: options.ExpertLink = None,
    draft: options.Draft = None,
    draft_tokens: options.DraftTokens = None,
    draft_group_size: options.DraftGroupSize = None,
    draft_prefetch: options.DraftPrefetch = None,
    draft_lossy: options.DraftLossy = False,
    draft_residual: options.DraftResidual = False,
    no_draft_auto_off: options.NoDraftAutoOff = False,
    max_model_len: options.MaxModelLen = None,
    threads: options.Threads = None,
    tensor_parallel_size: options.TensorParallelSize = None,
    data_parallel_size: options.DataParallelSize = None,
    data_parallel_routing: options.DataParallelRouting = None,
    schedule: options.Schedule = None,
    placement: options.PlacementFolder = None,
    capacity_factor: options.CapacityFactor = None,
    no_dedup: options.NoDedup = False,
    in_process: options.InProcess = False,
    print_config: options.PrintConfig = False,
) -> int:
    """Serve a model over HTTP as OpenAI's API has it: through Ray actors, or in this process. Answers /health with 503
    until the model is loaded. SIGTERM ends it when the answers in flight have ended."""
    deployment = resolve(
        ctx,
        config,
        in_process=in_process,
        model=model,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        dtype=dtype,
        expert_memory=expert_memory,
        expert_memory_max=expert_memory_max,
        expert_policy=expert_policy,
        expert_tier=expert_tier,
        expert_link=expert_link,
        draft=draft,
        draft_tokens=draft_tokens,
        draft_group_size=draft_group_size,
        draft_prefetch=draft_prefetch,
        draft_lossy=draft_lossy,
        draft_residual=draft_residual,
        no_draft_auto_off=no_draft_auto_off,
        max_model_len=max_model_len,
        threads=threads,
        tensor_parallel_size=tensor_parallel_size,
        data_parallel_size=data_parallel_size,
        data_parallel_routing=data_parallel_routing,
        schedule=schedule,
        placement=placement,
        capacity_factor=capacity_factor,
        no_dedup=no_dedup,
    )
    if print_config:
        return print_resolved(deployment)
    server = ServerConfig(
        host=host,
        port=integer("port", port) or 0,
        served_model_name=served_model_name,
        api_key=api_key or os.environ.get(KEY_VARIABLE),
        max_queue=integer("max_queue", max_queue) or 0,
        max_body_bytes=integer("max_body_bytes", max_body_bytes) or 0,
        request_timeout_s=number("request_timeout", request_timeout) or 0.0,
        drain_s=number("drain_timeout", drain_timeout) or 0.0,
    )
    return _serve(deployment, server, in_process=in_process)


def _serve(deployment: Deployment, server: ServerConfig, *, in_process: bool) -> int:
    from smoe.cli import preflight
    from smoe.llm import open_client

    engine = deployment.engine_config()
    info = preflight.check(engine).info
    cluster = None if in_process else deployment.cluster
    name = server.served_model_name or info.name
    return listen(lambda: open_client(engine, distributed=not in_process, cluster=cluster), name, server)


def listen(open_client: Callable[[], EngineClient], name: str, server: ServerConfig) -> int:
    """Until a signal asks it to end. The exit code: 1 when the model did not load."""
    import socket

    import uvicorn

    from smoe.server.app import make_app

    app = make_app(open_client, name, server)
    try:
        door = socket.create_server((server.host, server.port), backlog=2048)
    except OSError as error:
        raise ConfigError("port", f"{server.host}:{server.port}", f"one to listen on: {error.strerror}") from error
    with door:
        print(f"{name} at http://{server.host}:{door.getsockname()[1]}/v1", file=sys.stderr, flush=True)
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, timeout_graceful_shutdown=math.ceil(server.drain_s)
        )
        runner = uvicorn.Server(config)
        app.state.engine.on_failure = lambda: setattr(runner, "should_exit", True)
        runner.run(sockets=[door])
    failure: str | None = app.state.engine.failure
    if failure is not None:
        print(f"error: {failure}", file=sys.stderr)
    return 0 if failure is None else 1
