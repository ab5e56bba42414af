"""`smoe convert`: new model folders from old ones."""

import sys
from pathlib import Path
from typing import Annotated, Literal, cast

import typer

from smoe.cli import options
from smoe.cli.values import integer
from smoe.core.errors import ConfigError

NAME = "convert"
EXAMPLE = options.example("smoe convert inflate --hidden 2048 --expert-ffn 1024 --out inflated")

app = typer.Typer(help="Make a model folder from another one.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _group() -> None:
    """Make a model folder from another one."""


@app.command("inflate", epilog=EXAMPLE)
def inflate_command(
    hidden: Annotated[str, typer.Option("--hidden", metavar="N", help="The new hidden size.")],
    expert_ffn: Annotated[str, typer.Option("--expert-ffn", metavar="N", help="The new units of each expert.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="The new folder.")],
    model: options.Model = "builtin",
    seed: Annotated[str, typer.Option("--seed", metavar="N", help="Of the orthonormal map.")] = "0",
    dtype: Annotated[str, typer.Option("--dtype", metavar="TYPE", help="bfloat16 or float32.")] = "bfloat16",
) -> None:
    """Make a model heavier without changing what it computes."""
    sizes = {name: _size(name, text) for name, text in (("hidden", hidden), ("expert_ffn", expert_ffn))}
    if dtype not in ("bfloat16", "float32"):
        raise ConfigError("dtype", dtype, "bfloat16 or float32")
    seed_value = integer("seed", seed)
    assert seed_value is not None
    from smoe.models.inflate import inflate
    from smoe.models.loading import open_checkpoint

    source = open_checkpoint(model)
    with _Progress() as progress:
        inflate(
            source,
            out,
            hidden=sizes["hidden"],
            expert_ffn=sizes["expert_ffn"],
            seed=seed_value,
            dtype=cast(Literal["bfloat16", "float32"], dtype),
            on_progress=progress.update,
        )
    print(out)


def _size(name: str, text: str) -> int:
    value = integer(name, text)
    if value is None or value < 1:
        raise ConfigError(name, text, "integer >= 1")
    return value


class _Progress:
    """A bar on a terminal, a line every tenth elsewhere; both on stderr."""

    def __enter__(self) -> "_Progress":
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

        self._tenth = 0
        columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn())
        self._bar = Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty())
        self._bar.start()
        self._task = self._bar.add_task("writing", total=None)
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def update(self, written: int, total: int) -> None:
        self._bar.update(self._task, completed=written, total=total)
        tenth = 10 * written // max(1, total)
        if self._bar.disable and tenth > self._tenth:
            self._tenth = tenth
            print(f"written {tenth * 10} % of {total:,} bytes", file=sys.stderr)
