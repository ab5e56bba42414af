"""Two processors emulated on one CPU: a core for the experts in slots, another one for those computed where they are.

Weights of one layer of a model, routes of a trace; times are measured, with both cores at work and with each alone.
"""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from statistics import mean, median
from typing import Any

import numpy as np
import torch

from smoe.bench.result import Figure
from smoe.core.errors import ConfigError
from smoe.core.route_trace import Array, RouteTrace
from smoe.kernels import ExpertTable, ExpertTensors, moe_pairs
from smoe.offload.policies.balance import Limits, LinearSides, Objective, best_experts, choose_threshold, fit_sides
from smoe.offload.policies.utility_states import Calibrated
from smoe.offload.pools import SecondCore
from smoe.sim.sensors import states_after
from smoe.sim.windowed import window_counts, windowed

TILES = (1, 2, 4, 8, 16)
FIT_ROWS, FIT_EXPERTS, FIT_REPEATS = (1, 2, 4, 9), 6, 5
FIXED = "tau 1"
BOUND = "each expert on its best side"
CHOICES = (FIXED, "least difference", "least makespan", BOUND)


class Pools:
    """`fast` takes all its experts in one call, `slow` one after the other. Outputs go into one buffer."""

    def __init__(self, experts: Sequence[ExpertTensors], *, hidden: int, rows: int, top_k: int, seed: int) -> None:
        ffn = experts[0].gate.shape[0]
        self.table = ExpertTable(len(experts), hidden, ffn)
        for slot, tensors in enumerate(experts):
            self.table.set(slot, tensors)
        generator = torch.Generator().manual_seed(seed)
        self.x_TD = torch.randn(rows, hidden, generator=generator).to(experts[0].gate.dtype)
        self.top_k = top_k
        self.pairs_TKD = torch.full((rows, top_k, hidden), torch.nan)
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) < 2:
            raise ConfigError("cores", len(cores), "two, one for each side")
        self.fast, self.slow = SecondCore(cores[0]), SecondCore(cores[1])

    def close(self) -> None:
        self.fast.close()
        self.slow.close()

    def alone(self, ids: Array, experts: Sequence[int], *, fast: bool) -> float:
        """Seconds of one side."""
        work = self._fast(ids, experts) if fast else self._slow(ids, experts)
        return (self.fast if fast else self.slow).begin(lambda: _timed(work)).result()

    def both(self, ids: Array, hot: Sequence[int], cold: Sequence[int]) -> float:
        """Seconds until both sides have ended, begun at once."""
        started = time.perf_counter()
        sides = self.fast.begin(self._fast(ids, hot)), self.slow.begin(self._slow(ids, cold))
        for side in sides:
            side.result()
        return time.perf_counter() - started

    def each(self, hot_ids: Array, hot: Sequence[int], cold_ids: Array, cold: Sequence[int]) -> tuple[float, float]:
        """Seconds of either side, begun at once, each with choices of its own."""
        fast, slow = self._fast(_wide(hot_ids, self.top_k), hot), self._slow(_wide(cold_ids, self.top_k), cold)
        sides = self.fast.begin(lambda: _timed(fast)), self.slow.begin(lambda: _timed(slow))
        return sides[0].result(), sides[1].result()

    def _fast(self, ids: Array, experts: Sequence[int]) -> Callable[[], None]:
        slots = _slots(ids, experts)
        return lambda: moe_pairs(self.x_TD, slots, self.table, self.pairs_TKD) if experts else None

    def _slow(self, ids: Array, experts: Sequence[int]) -> Callable[[], None]:
        each = [_slots(ids, [expert]) for expert in experts]

        def run() -> None:
            for slots in each:
                moe_pairs(self.x_TD, slots, self.table, self.pairs_TKD)

        return run


def measure_pools(
    experts: Sequence[ExpertTensors],
    trace: RouteTrace,
    *,
    hidden: int,
    layer: int = 0,
    rows: int = 9,
    most_windows: int = 12,
    repeats: int = 3,
    seed: int = 0,
) -> dict[str, Any]:
    """`summary`, a list of Figures, `sides`, the LinearSides measured, and `samples`. `experts` are all of the layer of
    that index in `trace`, in memory; any of them may be on either side. The last windows of the trace are computed.

    Raises ConfigError with fewer than two cores.
    """
    windows = windowed(trace, rows)
    counts = window_counts(windows)[:, layer : layer + 1]
    states = states_after(counts, Calibrated())[:, 0]
    first = max(1, len(counts) - most_windows)
    pools = Pools(experts, hidden=hidden, rows=rows, top_k=trace.top_k, seed=seed)
    with closing(pools):
        sides, fitted = _fit(pools, len(experts), trace.top_k, repeats)
        samples: dict[str, list[dict[str, float]]] = {choice: [] for choice in CHOICES}
        for window in range(first, len(counts)):
            ids = windows.expert_ids[layer, rows * window : rows * (window + 1)].astype(np.int32)
            whole = _reference(pools, ids)
            for choice in CHOICES:
                hot = _hot(choice, states[window - 1], counts[window - 1, 0], counts[window, 0], sides)
                samples[choice].append(_measure(pools, ids, hot, repeats, sides, whole))
    return {
        "summary": _figures(samples, sides),
        "sides": sides,
        "samples": {"fitted": fitted, "by_choice": samples, "emulated": "two cores of one CPU, which share its memory"},
    }


def _hot(choice: str, states: Array, last: Array, now: Array, sides: LinearSides) -> set[int]:
    """By the states and counts of the window before; the bound knows this one's."""
    if choice == BOUND:
        return best_experts(_rows_of(now), sides)
    tau = 1
    if choice != FIXED:
        objective: Objective = "difference" if choice == "least difference" else "makespan"
        tau, _ = choose_threshold(states.tolist(), _rows_of(last), (), sides, Limits(), objective)
    return set(np.flatnonzero(states >= tau).tolist())


def _measure(
    pools: Pools, ids: Array, hot: set[int], repeats: int, sides: LinearSides, whole: torch.Tensor
) -> dict[str, float]:
    rows = _rows_of(np.bincount(ids.ravel(), minlength=1))
    fast, slow = [e for e in rows if e in hot], [e for e in rows if e not in hot]
    times: list[tuple[float, float, float]] = []
    for _ in range(repeats):
        pools.pairs_TKD.fill_(torch.nan)
        both = pools.both(ids, fast, slow)
        if not torch.equal(pools.pairs_TKD, whole):
            raise RuntimeError("outputs of two sides differ from those of one")
        times.append((both, pools.alone(ids, fast, fast=True), pools.alone(ids, slow, fast=False)))
    both, fast_s, slow_s = (median(of) for of in zip(*times, strict=True))
    return {
        "both_s": both,
        "fast_s": fast_s,
        "slow_s": slow_s,
        "foretold_fast_s": sides.fast_s(rows[e] for e in fast),
        "foretold_slow_s": sides.slow_s(rows[e] for e in slow),
        "hot": len(fast),
        "cold": len(slow),
    }


def _reference(pools: Pools, ids: Array) -> torch.Tensor:
    pools.alone(ids, sorted(set(ids.ravel().tolist())), fast=True)
    return pools.pairs_TKD.clone()


def _fit(pools: Pools, num_experts: int, top_k: int, repeats: int) -> tuple[LinearSides, dict[str, Any]]:
    """Constants of both sides at work together, since that is when they count; of experts that change, so that no
    cache has them. Medians: others may have work on these cores."""
    fast, slow = list[tuple[int, float]](), list[tuple[int, float]]()
    some = min(FIT_EXPERTS, num_experts // 2, top_k)
    first = 0
    for rows in FIT_ROWS:
        if rows > len(pools.x_TD):
            continue
        times: list[tuple[float, float]] = []
        for _ in range(FIT_REPEATS * repeats):
            mine, others = ([(first + i) % num_experts for i in range(at, at + some)] for at in (0, some))
            first += 2 * some
            ids = np.full((len(pools.x_TD), 2 * some), -1, np.int32)
            ids[:rows] = mine + others
            times.append(pools.each(ids[:, :some], mine, ids[:, some:], others))
        fast.append((rows, median(seconds for seconds, _ in times)))
        slow.append((rows, median(seconds for _, seconds in times) / some))
    tile = min(TILES, key=lambda tile: _miss(fit_sides(fast, slow, tile=tile, experts=some), fast, some))
    return fit_sides(fast, slow, tile=tile, experts=some), {"fast": fast, "slow": slow, "experts": some}


def _miss(sides: LinearSides, fast: Sequence[tuple[int, float]], some: int) -> float:
    return sum((sides.fast_s([rows] * some) - seconds) ** 2 for rows, seconds in fast)


def _figures(samples: dict[str, list[dict[str, float]]], sides: LinearSides) -> list[Figure]:
    bound = f"g0 {1e3 * sides.g0:.2f}, g1 {1e3 * sides.g1:.2f} ({sides.tile} rows), m0 {1e3 * sides.m0:.2f}, m1 "
    bound += f"{1e3 * sides.m1:.2f} ms"
    figures = []
    for choice, of in samples.items():
        both = mean(s["both_s"] for s in of)
        serial = mean(s["fast_s"] + s["slow_s"] for s in of)
        foretold = mean(max(s["foretold_fast_s"], s["foretold_slow_s"]) for s in of)
        apart = mean(abs(s["fast_s"] - s["slow_s"]) for s in of)
        figures += [
            Figure(figure=f"emulated: both sides' end, {choice}", value=1e3 * both, unit="ms a layer", bound=bound),
            Figure(figure=f"emulated: foretold, {choice}", value=1e3 * foretold, unit="ms a layer"),
            Figure(figure=f"emulated: one after the other, {choice}", value=1e3 * serial, unit="ms a layer"),
            Figure(figure=f"emulated: |T_slow - T_fast|, {choice}", value=1e3 * apart, unit="ms a layer"),
        ]
    return figures


def _rows_of(counts: Array) -> dict[int, int]:
    used = np.flatnonzero(counts)
    return dict(zip(used.tolist(), counts[used].tolist(), strict=True))


def _slots(ids: Array, experts: Sequence[int]) -> torch.Tensor:
    """An expert's slot is its number; -1 where another is asked for."""
    return torch.from_numpy(np.where(np.isin(ids, list(experts)), ids, -1).astype(np.int32))


def _wide(ids: Array, top_k: int) -> Array:
    return np.pad(ids, ((0, 0), (0, top_k - ids.shape[1])), constant_values=-1)


def _timed(work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
