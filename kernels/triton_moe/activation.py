"""The gated activation in a kernel; its twin is `ExpertTable.activated_ref`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smoe.kernels.routing.launch import device_function

if TYPE_CHECKING:
    import triton.language as tl


@device_function
def activate(gate: tl.tensor, up: tl.tensor, alpha: tl.tensor, limit: tl.tensor, GPTOSS: tl.constexpr) -> tl.tensor:
    """fp32. Bounds by comparison: NaN passes through, which a minimum would drop."""
    if GPTOSS:
        gate = tl.where(gate > limit, limit, gate)
        up = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up))
        return (up + 1.0) * (gate / (1.0 + tl.exp(-alpha * gate)))
    return gate / (1.0 + tl.exp(-gate)) * up
