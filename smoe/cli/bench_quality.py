"""`smoe bench quality`."""

from pathlib import Path
from typing import Annotated

import typer

from smoe.cli import options
from smoe.cli.progress import Progress

EXAMPLE = options.example("smoe bench quality --quick --expert-memory 25%")


def command(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer and shorter texts: two minutes.")] = False,
    expert_memory: Annotated[
        str, typer.Option("--expert-memory", metavar="X", help="Slots a layer, a fraction or bytes.")
    ] = "25%",
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where result file and picture go.")] = Path(
        "benchmarks/results"
    ),
    cache: Annotated[
        Path | None, typer.Option("--cache", metavar="DIR", help="Keeps the 4.9 GB model; default ~/.cache/smoe.")
    ] = None,
    skip_inflated: Annotated[bool, typer.Option("--skip-inflated", help="Leave the 4.9 GB model, and times, out.")] = (
        False
    ),
) -> None:
    """Perplexity that lossy policies cost, one token a step, against the gate mass and the time they save."""
    from smoe.bench.decode.bound import inflated_folder
    from smoe.bench.quality.run import run
    from smoe.bench.result import print_figures
    from smoe.core.cache_root import cache_root
    from smoe.engine.tokenizer import load_tokenizer
    from smoe.models.loading import model_folder

    tokenizer = load_tokenizer(model_folder("builtin"))
    assert tokenizer is not None
    with Progress("tokens scored", 0) as progress:
        result = run(
            tokenizer.encode,
            quick=quick,
            expert_memory=expert_memory,
            inflated=None if skip_inflated else lambda: inflated_folder(cache or cache_root()),
            out=out,
            on_progress=progress.update,
        )
    print_figures(result.summary, "quality")
    print(result.write(out))
