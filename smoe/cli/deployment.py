"""A deployment from a file and from flags: flags that are given win, and what they change is said."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from smoe.cli.values import integer, no_effect, number
from smoe.core.cluster_config import ClusterConfig
from smoe.core.deployment import Deployment
from smoe.core.deployment_file import deployment_yaml, read_deployment
from smoe.core.errors import ConfigError

_FIELDS = {
    "model": "model.path",
    "dtype": "model.dtype",
    "max_model_len": "model.max_model_len",
    "threads": "engine.threads",
    "max_num_seqs": "engine.max_num_seqs",
    "max_num_batched_tokens": "engine.max_num_batched_tokens",
    "expert_memory": "experts.memory",
    "expert_memory_max": "experts.memory_max",
    "expert_policy": "experts.policy",
    "expert_tier": "experts.tier",
    "expert_link": "experts.link",
    "draft": "draft.model",
    "draft_tokens": "draft.tokens",
    "draft_group_size": "draft.group_size",
    "draft_prefetch": "draft.prefetch",
    "draft_lossy": "draft.lossy",
    "draft_residual": "draft.residual",
    "no_draft_auto_off": "draft.auto_off",
    "tensor_parallel_size": "parallel.tensor_parallel_size",
    "data_parallel_size": "parallel.data_parallel_size",
    "data_parallel_routing": "parallel.data_parallel_routing",
    "schedule": "parallel.schedule",
    "placement": "parallel.placement",
    "capacity_factor": "parallel.capacity_factor",
    "no_dedup": "parallel.dedup",
    "host": "serve.host",
    "port": "serve.port",
    "served_model_name": "serve.served_model_name",
    "replicas": "serve.replicas",
    "ingress": "serve.ingress",
    "max_queue": "serve.max_queue",
    "max_body_bytes": "serve.max_body_bytes",
    "request_timeout": "serve.request_timeout_s",
    "drain_timeout": "serve.drain_s",
    "metrics_reset": "serve.metrics_reset",
}
_INTEGERS = (
    "draft_group_size",
    "max_model_len",
    "threads",
    "max_num_seqs",
    "max_num_batched_tokens",
    "tensor_parallel_size",
    "data_parallel_size",
    "port",
    "replicas",
    "max_queue",
    "max_body_bytes",
)
_NUMBERS = ("capacity_factor", "request_timeout", "drain_timeout")


def resolve(ctx: typer.Context, file: str | None, *, in_process: bool) -> Deployment:
    """The deployment of `file`, or the default one, with what the verb's command line says in so many words.

    Raises ConfigError, also for what has no effect in this process, or cannot be there.
    """
    if file is not None and not Path(file).is_file():
        raise ConfigError("config", file, "a YAML file with a deployment; a text to continue is a --prompt")
    base = Deployment() if file is None else read_deployment(file)
    given = {path: _value(name, ctx.params[name]) for name, path in _FIELDS.items() if _is_given(ctx, name)}
    changes = [f"{p} {new} (not {base.get(p)})" for p, new in given.items() if str(base.get(p)) != str(new)]
    if file is not None and changes:
        print(f"{file}, but from the command line: {', '.join(changes)}", file=sys.stderr)
    chosen = base.changed(given)
    chosen.engine_config()
    _check_effects(chosen, given)
    if in_process:
        _check_in_process(chosen, given, file)
    return chosen


def print_resolved(deployment: Deployment) -> int:
    print(deployment_yaml(deployment), end="")
    return 0


def _is_given(ctx: typer.Context, name: str) -> bool:
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _value(name: str, flag: str | bool | None) -> Any:
    if isinstance(flag, bool):
        return flag != name.startswith("no_")
    if name == "draft_tokens" and str(flag).isdigit():
        return int(str(flag))
    if name in _INTEGERS:
        return integer(name, flag)
    return number(name, flag) if name in _NUMBERS else flag


def _check_effects(chosen: Deployment, given: Mapping[str, Any]) -> None:
    """What the default would have done too is refused as well, where it was asked for in so many words."""
    parallel = chosen.parallel
    needs = {
        "schedule": (parallel.tensor_parallel_size, "--tensor-parallel-size of 2 or more"),
        "capacity_factor": (parallel.tensor_parallel_size, "--tensor-parallel-size of 2 or more"),
        "data_parallel_routing": (parallel.data_parallel_size, "--data-parallel-size of 2 or more"),
    }
    for name, (size, needed) in needs.items():
        if f"parallel.{name}" in given and size == 1:
            raise no_effect(name, given[f"parallel.{name}"], needed)


def _check_in_process(chosen: Deployment, given: Mapping[str, Any], file: str | None) -> None:
    for name in ("tensor_parallel_size", "data_parallel_size"):
        if (size := getattr(chosen.parallel, name)) > 1:
            raise ConfigError(name, size, "1 with --in-process: several devices need an actor each")
    if (replicas := chosen.serve.replicas) > 1:
        raise ConfigError("replicas", replicas, "1 with --in-process: each further one needs processes of its own")
    if "serve.ingress" in given:
        raise ConfigError("ingress", given["serve.ingress"], "has no effect with --in-process, which listens itself")
    default = ClusterConfig()
    for name in ("strategy", "cpus", "gpus", "resources", "placement_timeout_s"):
        value = getattr(chosen.cluster, name)
        if value != getattr(default, name):
            raise ConfigError(f"{file}: cluster.{name}", value, "has no effect with --in-process")
