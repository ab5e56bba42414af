"""`smoe regroup`: experts grouped by device from a route trace, judged on text that was not used for it."""

import contextlib
import hashlib
import json as json_module
import shutil
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from smoe.cli import options
from smoe.cli.progress import Progress
from smoe.cli.values import integer, number
from smoe.core.errors import ConfigError

if TYPE_CHECKING:
    from smoe.clustering.layer_job import LayerResult
    from smoe.clustering.regroup import ModelFacts, Regrouped, RegroupJob
    from smoe.core.regroup_config import RegroupConfig

NAME = "regroup"
EXAMPLE = options.example("smoe regroup --trace gpt-oss-20b --devices 4 --out placement/")


def command(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="The new placement folder.")],
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="YAML with these options; others given here win.")
    ] = None,
    trace: Annotated[
        str | None, typer.Option("--trace", metavar="FILE|NAME", help="A route trace, or the name of a packaged one.")
    ] = None,
    load: Annotated[
        str | None,
        typer.Option(
            "--load", metavar="FILE", help="Instead of a trace: CSV of layer_id, expert_id, count. Balances load only."
        ),
    ] = None,
    load_name: Annotated[
        str | None, typer.Option("--load-name", metavar="NAME", help="The table of a --load file.npz of several.")
    ] = None,
    devices: Annotated[
        str | None, typer.Option("--devices", metavar="N", help="Devices, with equally many experts each.")
    ] = None,
    slots_of_device: Annotated[
        str | None, typer.Option("--slots-of-device", metavar="A,B,..", help="Or the experts of each device.")
    ] = None,
    solver: Annotated[
        str | None, typer.Option("--solver", metavar="NAME", help="How experts are grouped; default cross-entropy.")
    ] = None,
    solver_option: Annotated[
        list[str] | None, typer.Option("--solver-option", metavar="NAME=X", help="Of the solver; may be repeated.")
    ] = None,
    theta: Annotated[
        str | None, typer.Option("--theta", metavar="X", help="Weight of token balance; default 0.001.")
    ] = None,
    max_load: Annotated[
        str | None,
        typer.Option("--max-load", metavar="X|none", help="Most load of a device over the mean; default 1.35."),
    ] = None,
    heldout: Annotated[
        str | None, typer.Option("--heldout", metavar="X", help="Share of sequences that judge only; default 0.2.")
    ] = None,
    seed: Annotated[str | None, typer.Option("--seed", metavar="N", help="Default 0.")] = None,
    replicas: Annotated[
        str | None, typer.Option("--replicas", metavar="N", help="More slots a device, for copies of hot experts.")
    ] = None,
    topology: Annotated[
        str | None,
        typer.Option("--topology", metavar="FILE|NAME", help="Devices and links: groups that talk go close together."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="DIR|builtin", help="Check the trace; place unseen token ids by embedding."),
    ] = None,
    vocab_size: Annotated[
        str | None, typer.Option("--vocab-size", metavar="N", help="Of the tables, where no model tells it.")
    ] = None,
    router_groups: Annotated[
        str | None, typer.Option("--router-groups", metavar="N", help="Keep groups of a group-limited router whole.")
    ] = None,
    jobs: Annotated[
        str | None, typer.Option("--jobs", metavar="N", help="Layers at a time; default: a CPU each.")
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Instead of a placement: every solver side by side, with pictures.")
    ] = False,
    in_process: options.InProcess = False,
    json: Annotated[bool, typer.Option("--json", help="Print the report as a JSON object.")] = False,
) -> None:
    """Group experts by device so that fewer tokens travel; write placement, tables and report.

    Layers are Ray tasks. A run that was stopped goes on when it is started again with the same arguments.
    """
    from smoe.cli.regroup_view import show
    from smoe.core.folder import check_new_folder
    from smoe.core.placement_file import check_placement_folder
    from smoe.core.regroup_config import RegroupConfig, read_regroup_fields

    given: dict[str, Any] = {
        "trace": trace,
        "load": load,
        "load_name": load_name,
        "devices": integer("devices", devices),
        "slots_of_device": _slots(slots_of_device),
        "solver": solver,
        "solver_options": _solver_options(solver_option),
        "theta": number("theta", theta),
        "max_load": number("max_load", max_load) if max_load != "none" else None,
        "heldout": number("heldout", heldout),
        "seed": integer("seed", seed),
        "replicas": integer("replicas", replicas),
        "topology": topology,
        "model": model,
        "vocab_size": integer("vocab_size", vocab_size),
        "router_groups": integer("router_groups", router_groups),
    }
    fields = {} if config is None else read_regroup_fields(config)
    fields |= {name: value for name, value in given.items() if value is not None}
    if max_load == "none":
        fields["max_load"] = None
    wanted_jobs = integer("jobs", jobs)
    if wanted_jobs is not None and wanted_jobs < 1:
        raise ConfigError("jobs", wanted_jobs, "integer >= 1")
    if in_process and wanted_jobs is not None:
        raise ConfigError("jobs", wanted_jobs, "not with --in-process, which runs one at a time")
    resolved = RegroupConfig(**fields)
    if compare:
        check_new_folder("out", out, "compare.json")
    else:
        check_placement_folder(out)
    print(f"config: {json_module.dumps(resolved.as_json())}", file=sys.stderr)
    job = _open(resolved)
    if compare:
        _compare(job, out, jobs=wanted_jobs, distributed=not in_process, json=json)
        return
    work = out.absolute().with_name(out.name + ".work")
    results = _solve(job, work, jobs=wanted_jobs, distributed=not in_process)
    regrouped = _finish(job, results, out)
    shutil.rmtree(work)
    if json:
        print(json_module.dumps(regrouped.report, indent=1))
    else:
        show(out, job, regrouped, results)


def _open(config: "RegroupConfig") -> "RegroupJob":
    from smoe.clustering.regroup import job_of_loads, job_of_trace
    from smoe.clustering.solver_options import configured_solver
    from smoe.core.load_table import read_load_table
    from smoe.core.packaged_traces import open_trace
    from smoe.core.topology_file import open_topology

    solver = configured_solver(config.solver, config.solver_options)
    if config.load is not None:
        return job_of_loads(config, solver, read_load_table(config.load, config.load_name))
    assert config.trace is not None
    topology = None if config.topology is None else open_topology(config.topology)
    facts = None if config.model is None else _facts(config.model)
    return job_of_trace(config, solver, open_trace(config.trace), model=facts, topology=topology)


def _facts(model: str) -> "ModelFacts":
    """Reads the embedding, and of everything else the headers."""
    import torch

    from smoe.clustering.regroup import ModelFacts
    from smoe.models.checkpoint import NOTHING
    from smoe.models.loading import open_checkpoint

    checkpoint = open_checkpoint(model)
    spec = checkpoint.spec
    router = spec.moe(spec.moe_layers[0]).router
    kept = checkpoint.params(dtype=torch.float32, part=lambda name: None if name == "embed" else NOTHING)
    return ModelFacts(
        fingerprint=checkpoint.fingerprint,
        num_experts=router.num_experts,
        top_k=router.top_k,
        layers=tuple(spec.moe_layers),
        vocab_size=spec.vocab,
        row_bytes=2 * spec.hidden,
        router_groups=router.num_groups,
        embedding=kept["embed"].float().numpy(),
    )


def _solve(job: "RegroupJob", work: Path, *, jobs: int | None, distributed: bool) -> "list[LayerResult]":
    """In the order of the layers; each is kept in `work` as soon as it is there."""
    from smoe.clustering.layer_job import RouteLayers, read_result, save_result, solve_layer, task_bytes
    from smoe.core.work_folder import open_work_folder

    files = [work / f"layer-{index:04d}.npz" for index in range(len(job.layers))]
    if open_work_folder(work, job.config.as_json() | {"files": _digests(job.config)}):
        there = sum(file.exists() for file in files)
        print(f"{work}: {there} of {len(files)} layers are there already", file=sys.stderr)
    missing = [index for index, file in enumerate(files) if not file.exists()]
    items: Sequence[Any]
    if job.fit is not None:
        items, size = RouteLayers(job.fit, missing), task_bytes(job.fit.num_tokens, job.fit.top_k, job.num_experts)
    else:
        assert job.table is not None
        items, size = [job.table.load[index] for index in missing], task_bytes(0, 0, job.num_experts)
    done = len(files) - len(missing)
    with Progress("layers", len(files)) as progress:
        progress.update(done)
        if not missing:
            pass
        elif distributed:
            from smoe.actors.regroup import solve_and_measure
            from smoe.actors.sweep import fan_out

            for position, result in fan_out(solve_and_measure, items, job.rules, jobs=jobs, memory_bytes=size):
                save_result(files[missing[position]], result)
                progress.update(done := done + 1)
        else:
            for index, item in zip(missing, items, strict=True):
                save_result(files[index], solve_layer(item, job.rules))
                progress.update(done := done + 1)
    return [read_result(file) for file in files]


def _finish(job: "RegroupJob", results: "list[LayerResult]", out: Path) -> "Regrouped":
    """Evaluates, draws and writes the folder, whole or not at all."""
    from smoe.cli.terminal import working
    from smoe.clustering.regroup import finish
    from smoe.clustering.regroup_files import pictures, run_record
    from smoe.core.placement_file import write_placement

    with working("judging on sequences held out"):
        regrouped = finish(job, results)
    files = pictures(job, regrouped, results) | {"run.json": run_record(job, results)}
    write_placement(out, regrouped.placement, report=regrouped.report, files=files)
    return regrouped


def _compare(job: "RegroupJob", out: Path, *, jobs: int | None, distributed: bool, json: bool) -> None:
    """Writes the folder of pictures and figures, and prints these."""
    from smoe.cli.regroup_view import show_comparison
    from smoe.clustering.regroup_compare import compare_all, comparison_files
    from smoe.core.folder import write_folder

    fan_out = None
    if distributed:
        from smoe.actors import sweep

        fan_out = partial(sweep.fan_out, jobs=jobs)
    shown: dict[str, Progress] = {}
    with contextlib.ExitStack() as stack:

        def progress(what: str, done: int, total: int) -> None:
            if what not in shown:
                shown[what] = stack.enter_context(Progress(what, total))
            shown[what].update(done)

        rows = compare_all(job, fan_out=fan_out, progress=progress)
    files = comparison_files(job, rows)
    write_folder("out", out, files, "compare.json")
    if json:
        print(files["compare.json"].decode(), end="")
    else:
        show_comparison(out, job, rows)


def _digests(config: "RegroupConfig") -> dict[str, str]:
    """Of the files that decide the result."""
    paths = [Path(name) for name in (config.trace, config.load, config.topology) if name is not None]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest()[:16] for path in paths if path.is_file()}


def _slots(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise ConfigError("slots_of_device", text, "integers between commas, as in 16,16,8") from error


def _solver_options(texts: list[str] | None) -> dict[str, Any] | None:
    if texts is None:
        return None
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ConfigError("solver_option", text, "NAME=VALUE, as in samples=256")
        if name in found:
            raise ConfigError("solver_option", text, "given once")
        try:
            found[name] = json_module.loads(value)
        except ValueError:
            found[name] = value
    return found
