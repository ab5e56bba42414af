"""`smoe plan`: what will live where, before anything loads."""

from typing import Annotated

import typer

from smoe.cli import options
from smoe.cli.deployment import resolve
from smoe.cli.engine_options import EXPERTS, takes

NAME = "plan"
EXAMPLE = options.example("smoe plan --model builtin --expert-memory 25%")


@takes(
    "model",
    "dtype",
    *EXPERTS,
    "expert_memory_max",
    "expert_link",
    "draft",
    "draft_tokens",
    "draft_group_size",
    "draft_residual",
    "max_model_len",
    "tensor_parallel_size",
    "data_parallel_size",
    "placement",
    before="max_num_seqs",
)
def command(
    ctx: typer.Context,
    config: options.ConfigFile = None,
    max_num_seqs: Annotated[
        str | None, typer.Option("--max-num-seqs", metavar="N", help="Requests that run at the same time.")
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print the figures as a JSON object; of several devices, a list of them.")
    ] = False,
) -> None:
    """Show what will live where: bytes of each part and the predicted peak, or of each device. Loads nothing."""
    deployment = resolve(ctx, config, in_process=False)
    engine = deployment.engine_config()
    if engine.parallel.size > 1:
        from smoe.cli.plan_devices import show_devices

        return show_devices(engine, as_json=json)
    from smoe.cli.forecast import forecast
    from smoe.engine.plan import plan_memory
    from smoe.models.loading import open_checkpoint

    checkpoint = open_checkpoint(engine.model)
    plan = plan_memory(checkpoint, engine)
    predicted = forecast(checkpoint, plan)
    if json:
        import json as json_module
        from dataclasses import asdict

        figures = {**asdict(plan), "predicted_peak_rss_bytes": plan.predicted_peak_rss_bytes}
        figures["predicted_decode"] = None if predicted is None else predicted.to_json()
        print(json_module.dumps(figures, indent=1))
        return
    from rich.console import Console
    from rich.table import Table

    from smoe.cli.answers import size

    experts = f"{plan.expert_slots:,} of {plan.num_moe_layers * plan.num_experts:,} experts"
    if engine.expert_memory_max is not None:
        experts += f" at first; memory for {engine.expert_memory_max}"
    below = "none" if plan.all_resident else f"{checkpoint.folder} ({size(plan.experts_total_bytes)})"
    if plan.residual_group_size is not None:
        below += ", read as residuals of the 4-bit copy"
    hosted = f"{plan.host_expert_slots:,} of {plan.num_moe_layers * plan.num_experts:,} experts"
    table = Table(title=f"{checkpoint.folder.name}: {checkpoint.spec.family}, {plan.dtype}", title_justify="left")
    for column in ("what", "where", "bytes", "how much"):
        table.add_column(column, justify="right" if column == "bytes" else "left")
    table.add_row("dense weights", "memory", size(plan.dense_bytes), "")
    table.add_row("experts, resident", "memory", size(plan.experts_resident_bytes), experts)
    if plan.host_expert_slots:
        table.add_row("experts, to copy from", "host memory", size(plan.host_experts_bytes), hosted)
    if engine.draft is not None:
        inside = "beside them" if plan.all_resident else "of the memory for experts"
        table.add_row(f"draft {engine.draft.model}", "memory", size(plan.draft_bytes), inside)
    table.add_row("experts, the rest", "-" if "disk" not in plan.expert_tiers else "disk", "", below)
    if not plan.all_resident:
        link = (
            ""
            if plan.emulated_link is None
            else f"over an emulated link from {plan.expert_tiers[-1]} of {plan.emulated_link}"
        )
        if plan.disk_reads is not None:
            table.add_row("expert reads", "disk", "", plan.disk_reads)
        table.add_row(
            "expert policy", "lossy" if plan.lossy else "lossless", "", f"{plan.expert_policy} {link}".strip()
        )
    row = size(plan.kv_row_bytes) + (f" and {size(plan.draft_row_bytes)} of the draft" if plan.draft_row_bytes else "")
    table.add_row("KV cache", "memory", size(plan.kv_bytes), f"{plan.kv_rows:,} rows of {row}")
    table.add_row("recurrent states", "memory", size(plan.state_bytes + plan.draft_state_bytes), "")
    table.add_row("workspace", "memory", size(plan.workspace_bytes), "estimated, at the largest step")
    table.add_row("this process", "memory", size(plan.process_bytes), "before loading")
    table.add_section()
    table.add_row(
        "predicted peak", "memory", size(plan.predicted_peak_rss_bytes), f"{size(plan.free_bytes)} are free now"
    )
    if predicted is not None:
        table.add_row("predicted decode", "one request", f"{predicted.tokens_per_s:.3g} tokens/s", predicted.lines())
    Console().print(table)
