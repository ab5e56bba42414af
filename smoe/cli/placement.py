"""`smoe placement`: look into, check, compare and export placements."""

from pathlib import Path
from typing import Annotated, Any

import typer

from smoe.cli import options
from smoe.cli.values import integer
from smoe.core.errors import ConfigError

NAME = "placement"
HELP = "Look into, check, compare and export placements of experts."

app = typer.Typer(help=HELP, no_args_is_help=True, rich_markup_mode=None)

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="A placement folder, as `smoe regroup` makes it.")]
Json = Annotated[bool, typer.Option("--json", help="Print a JSON object.")]
LayerOption = Annotated[
    str | None, typer.Option("--layer", metavar="N", help="One decoder layer only; default: all that have experts.")
]


@app.callback()
def _group() -> None:
    """Look into, check, compare and export placements of experts."""


@app.command("show", epilog=options.example("smoe placement show placement/"))
def show_command(folder: Folder, json: Json = False) -> None:
    """Sum a placement up: sizes, groups a layer, tables, and what it was judged to be worth."""
    from smoe.core.placement_file import read_placement, read_report
    from smoe.core.placement_summary import summarize

    summary = summarize(read_placement(folder), read_report(folder))
    if json:
        _print_json(summary)
        return
    from smoe.cli.placement_view import show

    show(str(folder), summary)


@app.command("validate", epilog=options.example("smoe placement validate placement/ --model builtin"))
def validate_command(
    folder: Folder,
    model: Annotated[
        str | None, typer.Option("--model", metavar="DIR|builtin", help="Check that it is of this model, too.")
    ] = None,
) -> None:
    """Check that a placement folder is whole and keeps every rule."""
    from smoe.core.placement_file import read_placement

    placement = read_placement(folder)
    says = "whole and valid"
    if model is not None:
        from smoe.models.loading import open_checkpoint
        from smoe.models.permute import check_model

        check_model(placement, open_checkpoint(model), str(folder))
        says += f", of the model {model}"
    print(f"{folder}: {says}")


@app.command("diff", epilog=options.example("smoe placement diff monday/ tuesday/ --expert-bytes 12MiB"))
def diff_command(
    before: Annotated[Path, typer.Argument(metavar="BEFORE", help="A placement folder.")],
    after: Annotated[Path, typer.Argument(metavar="AFTER", help="Another of the same model.")],
    expert_bytes: Annotated[
        str | None, typer.Option("--expert-bytes", metavar="BYTES", help="Of one expert, to say what a change moves.")
    ] = None,
    json: Json = False,
) -> None:
    """Count the experts that devices must fetch to get from one placement to another."""
    from dataclasses import asdict

    from smoe.core.placement_file import read_placement
    from smoe.core.placement_maps import diff
    from smoe.sim.units import byte_count

    size = None if expert_bytes is None else int(byte_count("expert_bytes", expert_bytes))
    if size is not None and size < 1:
        raise ConfigError("expert_bytes", expert_bytes, "above zero")
    change = diff(read_placement(before), read_placement(after), expert_bytes=size)
    if json:
        _print_json(asdict(change) | {"fetched": change.fetched})
        return
    from smoe.cli.placement_view import show_diff

    show_diff(change)


@app.command("invert", epilog=options.example("smoe placement invert placement/ --layer 3"))
def invert_command(folder: Folder, layer: LayerOption = None, json: Json = False) -> None:
    """List the experts of every device, and the slots of every expert."""
    from smoe.core.placement_file import read_placement
    from smoe.core.placement_maps import device2experts, expert2slots

    placement = read_placement(folder)
    rows = _rows(layer, placement.layers)
    devices, (slots, _) = device2experts(placement), expert2slots(placement)
    inverted = [
        {
            "layer": placement.layers[row],
            "device_experts": devices[row],
            "expert_slots": [[slot for slot in held if slot >= 0] for held in slots[row].tolist()],
        }
        for row in rows
    ]
    if json:
        _print_json({"slots_of_device": placement.slots_of_device, "layers": inverted})
        return
    from smoe.cli.placement_view import show_inverse

    show_inverse(inverted, placement.slot2device.tolist())


@app.command(
    "export", epilog=options.example("smoe placement export placement/ --format tensorrt-llm --out balancer.yaml")
)
def export_command(
    folder: Folder,
    form: Annotated[
        str,
        typer.Option("--format", metavar="FORMAT", help="eplb (.npz or .safetensors) or tensorrt-llm (.yaml)."),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The file to write.")],
) -> None:
    """Write the experts of a placement in another engine's format."""
    from smoe.core.placement_export import export
    from smoe.core.placement_file import read_placement

    placement = read_placement(folder)
    try:
        export(placement, form, out)
    except OSError as error:
        raise ConfigError("out", str(out), f"a file that can be written: {error.strerror}") from error
    print(f"{out}: {len(placement.layers)} layers, {placement.slot2expert.shape[1]} slots a layer")


def _rows(layer: str | None, layers: tuple[int, ...]) -> list[int]:
    number = integer("layer", layer)
    if number is None:
        return list(range(len(layers)))
    if number not in layers:
        raise ConfigError("layer", number, f"one of {', '.join(str(each) for each in layers)}")
    return [layers.index(number)]


def _print_json(value: Any) -> None:
    import json

    print(json.dumps(value, indent=1))
