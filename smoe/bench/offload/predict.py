"""The simulator's figure for what was measured: the same link, the same arithmetic, the built-in model's routes."""

from collections.abc import Mapping, Sequence
from statistics import median

from smoe.bench.offload.bound import tokens_per_s
from smoe.bench.offload.measure import Capacity
from smoe.bench.offload.plot import Curve
from smoe.bench.result import Figure
from smoe.core.link_model import LinkModel
from smoe.core.packaged_traces import open_trace
from smoe.offload.policies.spec import PolicySpec
from smoe.sim.predict import predict

TRACE = "builtin"


def curve(measured: Sequence[Capacity], policy: PolicySpec, expert_bytes: int, expert_share: float) -> Curve:
    """(percent, tokens/s); `expert_share` of the arithmetic's time is the experts'."""
    trace = open_trace(TRACE)
    accesses = len(trace.layers) * trace.top_k
    points = []
    for found in measured:
        compute_s = median(r.bound.compute_s for r in found.rounds)
        guess = predict(
            trace,
            policy,
            found.percent / 100,
            accesses=accesses,
            expert_bytes=expert_bytes,
            link=LinkModel(median(r.bound.link_bytes_per_s for r in found.rounds)),
            dense_s=(1 - expert_share) * compute_s,
            row_s=expert_share * compute_s / accesses,
        )
        points.append((found.percent, guess.tokens_per_s))
    return points


def prediction_figures(measured: Sequence[Capacity], predicted: Mapping[str, Curve]) -> list[Figure]:
    figures = []
    for name, points in predicted.items():
        for found, (percent, guess) in zip(measured, points, strict=True):
            real = median(tokens_per_s(found.rounds, name))
            figures.append(
                Figure(
                    figure=f"{percent:g} % {name}: predicted over measured",
                    value=guess / real,
                    unit="x",
                    bound=f"simulator {guess:.2f}, measured {real:.2f} tokens/s",
                )
            )
    return figures
