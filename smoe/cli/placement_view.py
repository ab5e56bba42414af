"""How `smoe placement` looks in a terminal."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from smoe.core.placement_maps import PlacementDiff


def show(title: str, summary: Mapping[str, Any]) -> None:
    console = Console()
    totals = Table(show_header=False, title=title, title_justify="left")
    copies, vocab = summary["copies"], summary["vocab_size"]
    for name, value in (
        ("model fingerprint", summary["fingerprint"]),
        ("experts a layer", f"{summary['num_experts']:,}"),
        ("layers with experts", f"{summary['num_layers']:,}"),
        ("devices", f"{summary['devices']:,}"),
        ("slots of the devices", _slots(summary["slots_of_device"])),
        ("copies a layer", f"{copies:,}" if copies else "none"),
        ("token tables", "none: experts only" if vocab is None else f"{vocab:,} token ids"),
    ):
        totals.add_row(name, value)
    console.print(totals)
    report = Table(show_header=False, title="report", title_justify="left")
    for name, value in _flat("", summary["report"]):
        report.add_row(name, value)
    if report.row_count:
        console.print(report)
    if copies or vocab:
        console.print(_layers(summary["layers"], bool(copies), bool(vocab)))


def _layers(layers: list[dict[str, Any]], copies: bool, tables: bool) -> Table:
    table = Table()
    columns = ["layer"]
    if copies:
        columns += ["experts with copies", "most copies"]
    if tables:
        columns += ["token ids by device", "mean confidence"]
    for column in columns:
        table.add_column(column, justify="right")
    for layer in layers:
        cells = [str(layer["layer"])]
        if copies:
            cells += [str(layer["experts_with_copies"]), str(layer["most_copies"])]
        if tables:
            cells += [" ".join(f"{share:.0%}" for share in layer["token_share"]), f"{layer['confidence']:.2f}"]
        table.add_row(*cells)
    return table


def show_diff(change: PlacementDiff) -> None:
    table = Table(show_footer=True)
    table.add_column("layer", "all", justify="right")
    table.add_column("to fetch", str(change.fetched), justify="right")
    table.add_column("to drop", str(sum(layer.dropped for layer in change.layers)), justify="right")
    for layer in change.layers:
        table.add_row(str(layer.layer), str(layer.fetched), str(layer.dropped))
    console = Console()
    console.print(table)
    share = change.fetched / change.holdings
    moved = "" if change.bytes_moved is None else f", {change.bytes_moved:,} bytes"
    console.print(f"{change.fetched:,} of {change.holdings:,} experts on the devices ({share:.1%}) are new{moved}")
    console.print(f"by device: {' '.join(str(count) for count in change.fetched_by_device)}")


def show_inverse(layers: list[dict[str, Any]], slot2device: list[int]) -> None:
    console = Console()
    for layer in layers:
        devices = Table(title=f"layer {layer['layer']}", title_justify="left")
        devices.add_column("device", justify="right")
        devices.add_column("experts")
        for device, experts in enumerate(layer["device_experts"]):
            devices.add_row(str(device), " ".join(str(expert) for expert in experts))
        console.print(devices)
        several = [(e, slots) for e, slots in enumerate(layer["expert_slots"]) if len(slots) > 1]
        if several:
            copies = Table()
            copies.add_column("expert", justify="right")
            copies.add_column("slots (device)")
            for expert, slots in several:
                copies.add_row(str(expert), "  ".join(f"{slot} ({slot2device[slot]})" for slot in slots))
            console.print(copies)


def _slots(slots: list[int]) -> str:
    if len(set(slots)) == 1:
        return f"{slots[0]:,} each"
    return " ".join(str(count) for count in slots)


def _flat(prefix: str, value: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """A report's figures, one line for each object in it by its dotted name; the rest is in the file."""
    leaves = [f"{key} {cell}" for key, each in value.items() if (cell := _cell(each))]
    if leaves:
        yield prefix, ", ".join(leaves)
    for key, inner in value.items():
        if isinstance(inner, dict):
            yield from _flat(f"{prefix}.{key}" if prefix else str(key), inner)


def _cell(value: Any) -> str:
    """Empty for what is not a figure or a word."""
    if isinstance(value, list) and value and all(type(each) in (int, float) for each in value):
        low, high = (_cell(each) for each in (min(value), max(value)))
        return low if low == high else f"{low} to {high}"
    if value is None or isinstance(value, (list, dict)):
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
