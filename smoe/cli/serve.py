"""`smoe serve`: OpenAI's HTTP interface to a model."""

import os
from dataclasses import fields
from typing import Annotated

import typer

from smoe.cli import options
from smoe.cli.deployment import print_resolved, resolve
from smoe.core.expert_tier import DEFAULT_TIER
from smoe.core.serve_config import ServeConfig
from smoe.server.config import ServerConfig

NAME = "serve"
EXAMPLE = options.example("smoe serve --model builtin --expert-memory 25% --port 8000")
KEY_VARIABLE = "SMOE_API_KEY"
DEFAULT = ServeConfig()


def command(
    ctx: typer.Context,
    config: options.ConfigFile = None,
    model: options.Model = "builtin",
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
        typer.Option(
            "--ingress", metavar="NAME", help="What listens: ray-serve (the default), or direct, at less time a token."
        ),
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
    """Serve a model over HTTP as OpenAI's API has it: by Ray Serve, or in this process. Answers /health with 503 until
    the model is loaded. SIGTERM or Ctrl-C ends it when the answers in flight have ended, a second one at once."""
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
        host=host,
        port=port,
        served_model_name=served_model_name,
        replicas=replicas,
        ingress=ingress,
        max_queue=max_queue,
        max_body_bytes=max_body_bytes,
        request_timeout=request_timeout,
        drain_timeout=drain_timeout,
        metrics_reset=metrics_reset,
    )
    if print_config:
        return print_resolved(deployment)
    from smoe.cli import preflight, serving

    serve = {each.name: getattr(deployment.serve, each.name) for each in fields(ServeConfig)}
    server = ServerConfig(**serve, api_key=api_key or os.environ.get(KEY_VARIABLE))
    engine = deployment.engine_config()
    name = server.served_model_name or preflight.check(engine).info.name
    if in_process:
        from smoe.llm import open_client

        return serving.listen(lambda: open_client(engine, distributed=False), name, server)
    run = serving.deploy if server.ingress == "ray-serve" else serving.listen_over_actors
    return run(engine, deployment.cluster, name, server)
