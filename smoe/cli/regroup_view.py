"""What `smoe regroup` prints when it is done: what a person needs to judge the placement."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from smoe.cli.answers import size

if TYPE_CHECKING:
    from rich.table import Table

    from smoe.clustering.compare import Compared
    from smoe.clustering.evaluate import Evaluation
    from smoe.clustering.layer_job import LayerResult
    from smoe.clustering.regroup import Regrouped, RegroupJob


def show(out: Path, job: "RegroupJob", regrouped: "Regrouped", results: "Sequence[LayerResult]") -> None:
    from rich.console import Console

    # A file or a pipe has no width; figures must not be cut for it.
    console = Console(width=None if sys.stdout.isatty() else 120)
    slots = ", ".join(map(str, job.rules.slots_of_device))
    print(f"{job.config.trace or job.config.load}: {len(job.layers)} layers, experts a device: {slots}")
    if job.fit is not None and job.heldout is not None and regrouped.evaluation is not None:
        print(
            f"learned from {job.fit.num_sequences:,} sequences ({job.fit.num_tokens:,} tokens), judged on "
            f"{job.heldout.num_sequences:,} others ({job.heldout.num_tokens:,} tokens)"
        )
        for table in (_local(regrouped.evaluation), _balance(regrouped.evaluation), _aligned(regrouped.evaluation)):
            console.print(table)
        console.print(_tables(regrouped.evaluation))
        console.print(_traffic(regrouped.evaluation))
        if job.topology is not None:
            console.print(_links(regrouped.report["topology"]))
    else:
        loads = [result.load_imbalance for result in results]
        print(f"expert load, busiest device / mean: {np.mean(loads):.3f} over layers, {max(loads):.3f} in the worst")
    if copied := regrouped.report.get("replicas"):
        before, after = (np.mean([layer[f"load_{when}"] for layer in copied]) for when in ("before", "after"))
        print(f"copies of hot experts: load, busiest device / mean, {before:.3f} without and {after:.3f} with (fitted)")
    seconds, peak = sum(result.seconds for result in results), max(result.peak_rss_bytes for result in results)
    memory = f", a task's process took {size(peak)} at most" if peak else ""
    print(f"layers solved in {seconds:,.1f} s of CPU time{memory}")
    print(f"{out.absolute()}: written")


def show_comparison(out: Path, job: "RegroupJob", rows: "Sequence[Compared]") -> None:
    from rich.console import Console

    assert job.heldout is not None
    title = f"{job.config.trace}: {len(job.rules.slots_of_device)} devices, {job.heldout.num_tokens:,} tokens held out"
    columns = ("solver", "theta", "max load", "by T", "T and A", "best device", "devices needed", "load", "tokens", "s")
    table = _table(title, *columns)
    for row in rows:
        shares = (row.lar_token, row.lar_chain, row.lar_best)
        balance = (row.needed_devices, row.load_imbalance, row.token_imbalance)
        limit = "none" if row.balance.max_load is None else f"{row.balance.max_load:g}"
        table.add_row(
            row.solver,
            f"{row.balance.theta:g}",
            limit,
            *(f"{np.mean(values):.3f}" for values in shares),
            *(f"{np.mean(values):.2f}" for values in balance),
            f"{sum(row.seconds):.1f}",
        )
    table.caption = (
        "local activations by table T, by T and A, on each token's best device; load and tokens: busiest / mean"
    )
    Console(width=None if sys.stdout.isatty() else 140).print(table)
    print(f"{out.absolute()}: written")


def _table(title: str, *columns: str) -> "Table":
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right", no_wrap=True)
    return table


def _local(evaluation: "Evaluation") -> "Table":
    table = _table("Local activations (held out)", "experts and tokens placed by", "mean", "worst layer", "best layer")
    for variant, by_layer in evaluation.lar.items():
        table.add_row(variant, *(f"{value:.3f}" for value in (np.mean(by_layer), min(by_layer), max(by_layer))))
    return table


def _balance(evaluation: "Evaluation") -> "Table":
    table = _table("Balance (held out)", "busiest device / mean", "mean", "worst layer")
    for name, by_layer in (
        ("expert load", evaluation.load_imbalance),
        ("tokens, before alignment", evaluation.token_imbalance),
    ):
        table.add_row(name, f"{np.mean(by_layer):.2f}", f"{max(by_layer):.2f}")
    needed = evaluation.needed_devices
    table.add_row("devices that a token needs", f"{np.mean(needed):.2f}", f"{max(needed):.2f}")
    return table


def _aligned(evaluation: "Evaluation") -> "Table":
    table = _table(
        "Local activations when batches are cut into chunks", "batches", "rows", "capacity", "mean", "tokens / mean"
    )
    for each in evaluation.aligned:
        capacity = "any" if each.factor is None else "equal chunks" if each.factor == 1.0 else f"{each.factor:g} x mean"
        table.add_row(each.batches, str(each.rows), capacity, f"{each.mean_lar:.3f}", f"{each.imbalance_after:.2f}")
    return table


def _tables(evaluation: "Evaluation") -> "Table":
    table = _table("Tables (held out)", "table", "decides", "local", "precision", "recall", "F1", "calibration error")
    for name, quality in evaluation.tables.items():
        figures = (quality.local, quality.precision, quality.recall, quality.f1, quality.calibration_error)
        table.add_row(name, f"{quality.decides:.1%}", *(f"{figure:.3f}" for figure in figures))
    table.caption = f"{evaluation.unseen:.1%} of the tokens have an id that was not seen"
    return table


def _traffic(evaluation: "Evaluation") -> "Table":
    table = _table("Rows a token and layer, all devices together", "schedule", "counted", "formula", "de-duplicated")
    for each in evaluation.traffic:
        table.add_row(each.schedule, *(f"{value:.2f}" for value in (each.counted, each.formula, each.deduplicated)))
    return table


def _links(report: "dict[str, object]") -> "Table":
    """All-to-all only, of all tokens held out and all layers."""
    before, after = report["before"], report["after"]
    assert isinstance(before, dict)
    assert isinstance(after, dict)
    unit = report["unit"]
    table = _table(f"All-to-all over {report['name']} ({unit}, held out)", "", "groups as numbered", "groups mapped")
    for kind in ("by_class", "by_kind"):
        for name in before[kind]:
            table.add_row(name, f"{before[kind][name]:,.0f}", f"{after[kind][name]:,.0f}")
    if unit == "bytes":
        table.add_row("time of all links", f"{before['link_s']:.3g} s", f"{after['link_s']:.3g} s")
        table.add_row("time of the busiest", f"{before['busiest_s']:.3g} s", f"{after['busiest_s']:.3g} s")
    return table
