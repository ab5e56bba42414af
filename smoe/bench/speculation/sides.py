"""Counts as a sensor (MoE-SpAc): costs of two cores as measured, a declared link from host memory."""

from dataclasses import replace

from smoe.bench.speculation.pools import measure_pools
from smoe.bench.speculation.setting import DTYPE, Setting
from smoe.bench.speculation.utility import measure_utility
from smoe.core.packaged_traces import open_trace

HOST_BYTES_PER_S, DRAFT_S = 8e9, 0.06  # declared
TRACES = ("builtin", "gpt-oss-20b")


def measure_sides(setting: Setting) -> None:
    setting.note("utility: two cores, one layer")
    layer = setting.spec.moe_layers[0]
    experts = setting.checkpoint.read_layer(layer, dtype=DTYPE)
    pools = measure_pools(experts, open_trace(TRACES[0]), hidden=setting.spec.hidden)
    setting.keep("pools", pools["samples"])
    setting.add(*pools["summary"])
    for name in TRACES:
        setting.note(f"utility: {name}")
        found = measure_utility(
            open_trace(name),
            sides=pools["sides"],
            fetch_s=setting.expert_bytes / HOST_BYTES_PER_S,
            draft_s=DRAFT_S,
            draft_recall=setting.recall,
            most_windows=setting.size.declared,
            name=name,
        )
        setting.keep(f"utility, {name}", {"of": found["of"], **found["samples"]})
        setting.add(*(replace(figure, figure=f"{name}: {figure.figure}") for figure in found["summary"]))
