"""`smoe bench regroup`: experts grouped by device, and what that is worth on sequences not used for it."""

from pathlib import Path

import numpy as np

from smoe.bench.regroup import builtin_part, deepseek, gpt_oss, scale, small
from smoe.bench.regroup.data import deepseek as read_deepseek
from smoe.bench.regroup.data import gpt_oss as read_gpt_oss
from smoe.bench.regroup.data import only_layers
from smoe.bench.regroup.session import THETA, Session, describe
from smoe.bench.result import Result
from smoe.clustering.compare import FanOut, in_process
from smoe.core.errors import ConfigError
from smoe.core.route_trace import RouteTrace

PARTS = ("gpt-oss", "deepseek", "builtin", "small", "scale")
QUICK_LAYERS = 4


def run(*, quick: bool, out: Path, data: Path, parts: tuple[str, ...] = PARTS, fan_out: FanOut | None = None) -> Result:
    """Under half an hour on two cores; `quick` about two minutes, on four middle layers. Pictures go to `out`, in
    quick mode to a folder of their own inside it.

    Raises ConfigError for a part that is not one, TraceError for missing data.
    """
    for part in parts:
        if part not in PARTS:
            raise ConfigError("parts", part, f"of {', '.join(PARTS)}")
    name = "regroup-quick" if quick else "regroup"
    result = Result(name=name, config={"seed": 0, "theta": THETA, "parts": list(parts), "heldout": 0.2})
    pictures = out / name if quick else out
    session = Session(result=result, fan_out=fan_out or in_process, out=pictures, quick=quick)
    decode = read_gpt_oss(data)
    if quick:
        decode = _middle(decode)
    result.config["gpt-oss-20b"] = describe(decode)
    if "gpt-oss" in parts:
        gpt_oss.run(session, decode)
    if "deepseek" in parts:
        prefill = read_deepseek(data)
        if quick:
            prefill = _middle(prefill)
        result.config["DeepSeek-V2-Lite"] = describe(prefill)
        deepseek.run(session, prefill)
    if "builtin" in parts:
        builtin_part.run(session)
    if "small" in parts:
        small.run(session, decode)
    if "scale" in parts:
        scale.run(session)
    session.note("done")
    return result


def _middle(trace: RouteTrace) -> RouteTrace:
    """Layers that follow each other, or table A would have no history."""
    first = (len(trace.layers) - QUICK_LAYERS) // 2
    return only_layers(trace, np.arange(first, first + QUICK_LAYERS))
