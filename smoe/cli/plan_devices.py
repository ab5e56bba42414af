"""`smoe plan` for several devices: a row each."""

import json
from collections.abc import Sequence
from dataclasses import asdict

from smoe.core.config import EngineConfig
from smoe.engine.plan_devices import DevicePlan, plan_devices


def show_devices(config: EngineConfig, *, as_json: bool) -> None:
    """Raises what plan_devices raises."""
    from smoe.models.loading import open_checkpoint

    checkpoint = open_checkpoint(config.model)
    plans = plan_devices(checkpoint, config)
    if as_json:
        print(json.dumps([{**asdict(plan), "bytes": plan.nbytes} for plan in plans], indent=1))
        return
    parallel = config.parallel
    title = f"{checkpoint.folder.name}: {checkpoint.spec.family}, {parallel.size} devices"
    if parallel.data_parallel_size > 1:
        title += f" in {parallel.data_parallel_size} groups of {parallel.tensor_parallel_size}"
    print_devices(plans, f"{title}; experts as in {parallel.placement or 'their order'}")


def print_devices(plans: Sequence[DevicePlan], title: str) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from smoe.cli.answers import size

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in ("device", "group", "attention", "vocab", "rest", "experts", "memory", "KV", "in all"):
        table.add_column(column, justify="right", no_wrap=True)
    for plan in plans:
        open_ended = plan.experts_bytes is None
        table.add_row(
            str(plan.device),
            str(plan.group),
            *(size(nbytes) for nbytes in (plan.attention_bytes, plan.vocabulary_bytes, plan.other_bytes)),
            f"{'?' if plan.expert_slots is None else plan.expert_slots} of {plan.experts}",
            "auto" if plan.experts_bytes is None else size(plan.experts_bytes),
            size(plan.kv_bytes + plan.state_bytes),
            size(plan.nbytes) + ("+" if open_ended else ""),
        )
    console = Console()
    console.print(table)
    console.print(
        "rest: norms, routers, shared experts, dense MLPs. experts: in memory at a time, of those that lie there, in "
        "how much memory. KV: for all requests at full length, with recurrent states; less where there is less room."
    )
