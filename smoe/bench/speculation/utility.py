"""What utility is worth on a trace of windows, beside simpler caches: copies, prediction, balance. Simulated."""

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

import numpy as np

from smoe.bench.result import Figure
from smoe.core.errors import ConfigError
from smoe.core.route_edit import select_sequences
from smoe.core.route_trace import Array, RouteTrace
from smoe.offload.policies.balance import LinearSides, best_split
from smoe.offload.policies.utility_states import Calibrated, Fixed
from smoe.sim.sensors import changes, hot_by_balance, hot_in_hindsight, mutual_information, right, states_after
from smoe.sim.two_sides import TwoSides, Window
from smoe.sim.windowed import window_counts, windowed

GOAL_ACCURACY = 0.85
ADMITTED = "miss=cpu,admit=background"
SHARED = "prefetch=utility,miss=cpu"
CACHES = {
    "lru": "evict=lru",
    "lfu": "evict=lfu",
    "score": "evict=utility:mass",
    "utility": "evict=utility:adaptive",
}
"""All misses are fetched: equal work, so that copies compare."""
BALANCES = {
    "lru in place": f"evict=lru,{ADMITTED}",
    "score in place": f"evict=utility:mass,{ADMITTED}",
    "released: tau 1": f"evict=utility:inertial,{SHARED}",
    "adaptive, tau 1": f"evict=utility:adaptive,{SHARED}",
    "adaptive, tau 2": f"evict=utility:adaptive:tau=2,{SHARED}",
    "adaptive, least difference": f"evict=utility:adaptive:difference,{SHARED}",
    "adaptive, least makespan": f"evict=utility:adaptive:makespan,{SHARED}",
    "adaptive, reachable makespan": f"evict=utility:adaptive:reachable,{SHARED}",
    "lru, split by experts": "evict=lru,miss=auto",
}
FEWEST_WINDOWS = 4


def measure_utility(
    trace: RouteTrace,
    *,
    sides: LinearSides,
    fetch_s: float,
    draft_s: float,
    rows: int = 9,
    share: float = 0.5,
    draft_recall: float | None = None,
    most_windows: int = 200,
    name: str = "trace",
    seed: int = 0,
) -> dict[str, Any]:
    """`summary`, a list of Figures, all `of` one setting in words, and `samples`. The first half of the windows only
    warms up.

    `rows` tokens are verified at once, at most `most_windows` times; `share` of the experts have slots, one pool for
    all layers. `fetch_s` a copy; `draft_s` before each window. With `draft_recall` a draft is imitated that chooses so
    many of the model's experts, others at random. Raises ConfigError for a trace of too few windows.
    """
    windows = windowed(trace, rows)
    if windows.num_sequences < FEWEST_WINDOWS:
        limit = f"at least {FEWEST_WINDOWS} windows of {rows} tokens of one sequence"
        raise ConfigError("trace", f"{windows.num_sequences} windows", limit)
    if windows.num_sequences > most_windows:
        windows = select_sequences(windows, range(most_windows))
    counts = window_counts(windows)
    warm, num_slots = len(counts) // 2, max(len(trace.layers), int(share * len(trace.layers) * trace.num_experts))

    def replay(policies: Mapping[str, str]) -> dict[str, list[Window]]:
        return {
            label: TwoSides(windows, policy, num_slots, sides, fetch_s=fetch_s, draft_s=draft_s, seed=seed).run()[warm:]
            for label, policy in policies.items()
        }

    caches, balances = replay(CACHES), replay(BALANCES)
    draft = None if draft_recall is None else window_counts(_drafted(windows, draft_recall, seed))
    sensed = _sensors(counts, sides, warm, draft)
    bound = [best_split([c for c in of if c], sides).makespan_s for layers in counts[warm:].tolist() for of in layers]
    bound_s = sum(bound) / (len(counts) - warm)
    return {
        "of": f"{name}, slots for {100 * share:g} %, windows of {rows}",
        "summary": [*_copies(caches), *_prediction(sensed), *_balance(balances, bound_s)],
        "samples": {
            "windows": len(counts) - warm,
            "num_slots": num_slots,
            "sides": {key: getattr(sides, key) for key in ("g0", "g1", "tile", "m0", "m1")},
            "fetch_s": fetch_s,
            "draft_s": draft_s,
            "policies": CACHES | BALANCES,
            "by_policy": {label: _raw(found) for label, found in (caches | balances).items()},
            "bound_makespan_s": bound_s,
            "sensors": sensed,
        },
    }


def _sensors(counts: Array, sides: LinearSides, warm: int, draft: Array | None) -> dict[str, Any]:
    """The class of an expert in a window is what the balance that knows the window would give it. What is told comes
    from the window before, or from the draft of the window itself."""
    truth = hot_in_hindsight(counts, sides)[warm + 1 :]
    before, after = counts[warm:-1], counts[warm + 1 :]
    states = {"fixed": states_after(counts, Fixed()), "adaptive": states_after(counts, Calibrated())}
    told = {label: hot_by_balance(of, counts, sides)[warm:-1] for label, of in states.items()}
    told["last counts"] = hot_in_hindsight(before, sides)
    told["used or not"] = before > 0
    signals = {"last counts": before, "used or not": (before > 0).astype(np.int64)}
    signals |= {label: of[warm:-1] for label, of in states.items()}
    if draft is not None:
        told["draft counts"] = hot_in_hindsight(draft[warm + 1 :], sides)
        signals["draft counts"] = draft[warm + 1 :]
    restless = {"last counts": counts[warm:], "used or not": counts[warm:] > 0}
    restless |= {label: of[warm:] for label, of in states.items()}
    return {
        "hot_share": float(truth.mean()),
        "right": {label: right(of, truth) for label, of in told.items()},
        "bits_of_next_counts": {label: mutual_information(of, after) for label, of in signals.items()},
        "changes_per_window": {label: changes(of) for label, of in restless.items()},
    }


def _drafted(windows: RouteTrace, recall: float, seed: int) -> RouteTrace:
    """Routes of which each choice is another expert with chance 1 - recall."""
    rng = np.random.default_rng(seed)
    ids = windows.expert_ids.astype(np.int64)
    other = rng.integers(1, max(2, windows.num_experts), ids.shape)
    wrong = rng.random(ids.shape) >= recall
    moved = np.where(wrong, (ids + other) % windows.num_experts, ids).astype(np.int16)
    return RouteTrace(
        **{f: getattr(windows, f) for f in ("fingerprint", "num_experts", "top_k", "layers")},
        token_ids=windows.token_ids,
        sequence_start=windows.sequence_start,
        phase=windows.phase,
        expert_ids=moved,
    )


def _copies(caches: Mapping[str, Sequence[Window]]) -> list[Figure]:
    copies = {label: mean(w.copies for w in found) for label, found in caches.items()}
    fewest = min(value for label, value in copies.items() if label != "utility")
    goal = f"fewer than lru, lfu, score: {fewest:.1f}"
    return [
        Figure(
            figure=f"copies a window, {label}",
            value=value,
            unit="experts",
            goal=goal if label == "utility" else None,
            met=value < fewest if label == "utility" else None,
        )
        for label, value in copies.items()
    ]


def _prediction(sensed: Mapping[str, Any]) -> list[Figure]:
    figures = []
    for label, found in sensed["right"].items():
        judged = label in ("adaptive", "draft counts")
        bound = f"always the commoner class: {found['base']:.3f}; recall {found['recall']:.2f}"
        figures.append(
            Figure(
                figure=f"next window's hot or cold told right, {label}",
                value=found["accuracy"],
                unit="",
                goal=f">= {GOAL_ACCURACY}" if judged else None,
                met=found["accuracy"] >= GOAL_ACCURACY if judged else None,
                bound=bound,
            )
        )
    bits, moves = sensed["bits_of_next_counts"], sensed["changes_per_window"]
    figures += [
        Figure(figure=f"bits told of the next counts, {label}", value=value, unit="bit")
        for label, value in bits.items()
    ]
    figures += [
        Figure(figure=f"changes a window, {label}", value=value, unit="experts") for label, value in moves.items()
    ]
    return figures


def _balance(balances: Mapping[str, Sequence[Window]], bound_s: float) -> list[Figure]:
    figures = []
    for label, found in balances.items():
        makespan, difference = mean(w.makespan_s + w.wait_s for w in found), mean(w.difference_s for w in found)
        bound = f"each expert on its best side, all in slots: {1e3 * bound_s:.2f} ms"
        figures += [
            Figure(figure=f"both sides' end, {label}", value=1e3 * makespan, unit="ms a window", bound=bound),
            Figure(figure=f"|T_slow - T_fast|, {label}", value=1e3 * difference, unit="ms a window"),
        ]
    return figures


def _raw(found: Sequence[Window]) -> dict[str, list[float]]:
    return {
        "copies": [w.copies for w in found],
        "makespan_s": [w.makespan_s for w in found],
        "difference_s": [w.difference_s for w in found],
        "wait_s": [w.wait_s for w in found],
        "slow_rows": [w.slow_rows for w in found],
        "fast_rows": [w.fast_rows for w in found],
    }
