"""`smoe profile steps`: what steps of the engine take on this host, for `smoe simulate serving`."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from smoe.cli import options
from smoe.cli.generate import dtype_of
from smoe.cli.values import integer
from smoe.core.errors import ConfigError

NAME = "steps"
EXAMPLE = options.example("smoe profile steps --quick --out steps.json")


def command(
    model: options.Model = "builtin",
    dtype: options.DType = "auto",
    threads: options.Threads = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer batches, contexts and repeats: seconds.")] = False,
    front: Annotated[
        bool, typer.Option("--front", help="Also what HTTP adds, by closed loops over a server of its own.")
    ] = False,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Where the profile goes.")] = Path("steps.json"),
) -> None:
    """Measure steps over batches, contexts and prompts, every expert resident, and fit what each part of them takes.
    Runs in this process; --front starts `smoe serve --in-process` beside it."""
    number = integer("threads", threads)
    if not out.parent.is_dir():
        raise ConfigError("out", str(out), "a file in a folder that exists")

    from smoe.bench.slo.corpus import MIXED, corpus
    from smoe.bench.slo.front_profile import QUICK_LOOPS, Loops, measure_front_of
    from smoe.bench.slo.step_profile import QUICK, Grid, measure_steps
    from smoe.core.config import EngineConfig
    from smoe.engine.tokenizer import load_tokenizer
    from smoe.models.loading import model_folder
    from smoe.sim.serving.fitted import FEATURES, fit
    from smoe.sim.serving.front import fit_front

    config = EngineConfig(model=model, dtype=dtype_of(dtype), threads=number)
    tokenizer = load_tokenizer(model_folder(model))
    if tokenizer is None:
        raise ConfigError("model", model, "a model with a tokenizer, which prompts are made with")
    text = corpus(MIXED, tokenizer.encode)
    profile = measure_steps(config, text, QUICK if quick else Grid())
    if front:
        loops = measure_front_of(config, text, QUICK_LOOPS if quick else Loops())
        profile = replace(profile, front=loops)
    fitted = fit(profile)
    profile.write(out)
    for name, seconds in zip(FEATURES, fitted.cost.seconds, strict=True):
        if seconds:
            print(f"{1e6 * seconds:12.3f} us a {name}")
    if front:
        http = fit_front(profile.front)
        for part, seconds in (("step", http.step_s), ("answer of a step", http.answer_s), ("request", http.request_s)):
            print(f"{1e6 * seconds:12.3f} us a {part}, over HTTP")
    errors = f"median {100 * fitted.median_error:.0f} %, p90 {100 * fitted.p90_error:.0f} %"
    print(f"error on a quarter of {fitted.steps} steps, not fitted to: {errors}")
    print(out)
