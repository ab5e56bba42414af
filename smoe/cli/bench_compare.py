"""`smoe bench compare`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from smoe.cli import options

if TYPE_CHECKING:
    from smoe.bench.compare import Comparison, Row, Value

EXAMPLE = options.example("smoe bench compare before/slo.json after/slo.json")


def command(
    before: Annotated[Path, typer.Argument(metavar="A.json", help="A result file.", show_default=False)],
    after: Annotated[Path, typer.Argument(metavar="B.json", help="Another with the same figures.", show_default=False)],
    json: Annotated[bool, typer.Option("--json", help="Print the comparison as a JSON object.")] = False,
) -> None:
    """The figures of two result files side by side, with the ratio of the second to the first, and what else differs:
    settings, hardware, versions. Also reads what vLLM's benchmarks write."""
    from smoe.bench.compare import compare

    found = compare(before, after)
    if json:
        import json as json_module

        print(json_module.dumps(_plain(found), indent=1))
    else:
        _print(found)


def _print(found: "Comparison") -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table()
    table.add_column("figure")
    for column in ("A", "B", "B / A"):
        table.add_column(column, justify="right")
    for row in found.rows:
        table.add_row(row.figure, _value(row.before), _value(row.after), _ratio(row))
    console = Console()
    console.print(table)
    for name, one, other in found.settings:
        console.print(f"{name}: {one!r} against {other!r}", markup=False, highlight=False)
    for which, names in (("A", found.only_before), ("B", found.only_after)):
        if names:
            console.print(f"only in {which}: {'; '.join(names)}", markup=False, highlight=False)


def _value(value: "Value") -> str:
    spread = f" ({value.low:,.4g} to {value.high:,.4g})" if value.spread else ""
    return f"{value.value:,.4g} {value.unit}".rstrip() + spread


def _ratio(row: "Row") -> str:
    if row.ratio is None:
        return "-"
    spread = row.ratio_spread
    return f"{row.ratio:.3g}x" + (f" ({spread[0]:.3g} to {spread[1]:.3g})" if spread else "")


def _plain(found: "Comparison") -> dict[str, object]:
    rows = [
        {
            "figure": row.figure,
            "unit": row.before.unit,
            "before": row.before.value,
            "after": row.after.value,
            "ratio": row.ratio,
            "ratio_spread": row.ratio_spread,
        }
        for row in found.rows
    ]
    return {
        "rows": rows,
        "only_before": found.only_before,
        "only_after": found.only_after,
        "settings": {name: [one, other] for name, one, other in found.settings},
    }
