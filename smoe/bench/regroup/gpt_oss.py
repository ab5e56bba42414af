"""gpt-oss-20b's decode routes: the front of locality against load, tables, alignment, devices, transfer, length."""

from collections.abc import Sequence
from dataclasses import asdict

import numpy as np

from smoe.bench.regroup.session import ALONE, BASELINES, FREE, HELD, OURS, THETA, Session, entry, mean, points
from smoe.clustering.compare import Compared
from smoe.clustering.evaluate import BOTH, CHAIN, ORACLE, TOKENS, VANILLA, Evaluation, evaluate
from smoe.clustering.front import above, share_at
from smoe.clustering.local import held_by
from smoe.clustering.plots import plot_calibration, plot_convergence, plot_front, plot_lar_by_layer
from smoe.clustering.problem import Balance
from smoe.clustering.transfer import Transferred, by_length, transfer
from smoe.core.route_edit import select_sequences, split
from smoe.core.route_trace import RouteTrace

NAME = "gpt-oss-20b"
LOADS = (1.05, 1.1, 1.2, 1.35, 1.5, 1.75)
QUICK_LOADS = (1.1, 1.35)
SHARES = (0.01, 0.03, 0.1, 0.3, 1.0)
KINDS = ("gpqa", "mmlu", "safety")
_BALANCES: dict[str, tuple[float | None, ...]] = {
    "metis": (None, *LOADS),
    "alternating": (None, *LOADS),
    "kmeans": (None, 1.1, 1.35),
}
"""Limits of load, for the baselines that heed one."""
GOAL_FREE, GOAL_HELD, GOAL_LEAD = 0.67, 0.56, 14.0
RIVALS = ("metis", "kmeans")


def run(session: Session, trace: RouteTrace) -> None:
    fit, heldout = split(trace, 0.8, seed=session.seed)
    rows = session.contest(f"{NAME}, 4 devices", fit, heldout, 4, entries(quick=session.quick))
    _front_figures(session, rows)
    session.note(f"{NAME}: evaluation")
    for what, balance in (("free load", FREE), ("load <= 1.35", HELD)):
        placed = held_by(entry(rows, OURS, balance).expert_device, 4)
        found = evaluate(fit, heldout, placed, (8,) * 4, seed=session.seed)
        session.result.samples[f"{NAME}, 4 devices, {what}, evaluation"] = found.as_json()
        _evaluation_figures(session, found, what)
        if balance == FREE:
            title = f"{NAME}, 4 devices, held-out, {what}"
            tables = {name: found.tables[name] for name in ("T", "T raw", "A")}
            plot_lar_by_layer(session.out / "regroup-lar-by-layer.png", found.lar, fit.layers, title)
            plot_calibration(session.out / "regroup-calibration.png", tables, title)
    _pictures(session, rows)
    for devices in () if session.quick else (2, 8):
        choice = [(name, balance) for name in (OURS, *RIVALS) for balance in (FREE, HELD)]
        _devices_figures(session, session.contest(f"{NAME}, {devices} devices", fit, heldout, devices, choice), devices)
    _transfer_figures(session, fit, heldout)


def entries(*, quick: bool) -> list[tuple[str, Balance]]:
    loads = [Balance(theta=THETA, max_load=load) for load in (QUICK_LOADS if quick else LOADS)]
    chosen = [(OURS, balance) for balance in (FREE, *loads)]
    if not quick:
        chosen.append((OURS, Balance(theta=0.1)))
    chosen += [(ALONE, balance) for balance in (FREE, HELD)]
    for name in BASELINES:
        chosen += [(name, balance) for balance in (FREE, *loads) if balance.max_load in _BALANCES.get(name, (None,))]
    return chosen


def _front_figures(session: Session, rows: Sequence[Compared]) -> None:
    free, held = (entry(rows, OURS, balance) for balance in (FREE, HELD))
    load = mean(held.load_imbalance)
    for what, row, goal in (("free load", free, GOAL_FREE), ("load <= 1.35 when fitted", held, GOAL_HELD)):
        lar = max(mean(row.lar_token), mean(row.lar_chain))
        session.figure(
            f"{NAME}: held-out LAR, 4 devices, {what}",
            lar,
            goal=f">= {goal}",
            met=lar >= goal,
            bound=f"T alone {mean(row.lar_token):.3f}, best device {mean(row.lar_best):.3f}, "
            f"load imbalance {mean(row.load_imbalance):.2f}",
        )
    for measure, what in (("lar_token", "by T"), ("lar_chain", "by T and A")):
        ours = points(rows, OURS, measure)
        others = [point for name in BASELINES for point in points(rows, name, measure)]
        lead = above(ours, others)
        session.figure(
            f"{NAME}: least lead of the front {what} over every baseline at equal load",
            None if lead is None else 100 * lead,
            "points",
            goal="above 0 everywhere",
            met=lead is not None and lead > 0,
            bound="LAR of our front, interpolated, minus the baseline's, at the baseline's imbalance",
        )
    for name in RIVALS:
        rival = entry(rows, name, FREE)
        at, theirs = mean(rival.load_imbalance), mean(rival.lar_token)
        own = share_at(points(rows, OURS), at)
        lead = None if own is None else 100 * (own / theirs - 1)
        session.figure(
            f"{NAME}: LAR by T above {name} at its imbalance of {at:.2f}",
            lead,
            "%",
            goal=f">= {GOAL_LEAD:g} %",
            met=lead is not None and lead >= GOAL_LEAD,
            bound=f"{name} {theirs:.3f}; the front interpolated {own or 0:.3f}",
        )
        same = entry(rows, name, HELD)
        session.figure(
            f"{NAME}: LAR by T above {name} under the same limit of 1.35",
            100 * (mean(held.lar_token) / mean(same.lar_token) - 1),
            "%",
            bound=f"imbalance {load:.2f} against {mean(same.load_imbalance):.2f}",
        )


def _evaluation_figures(session: Session, found: Evaluation, what: str) -> None:
    for variant in (VANILLA, TOKENS, BOTH, CHAIN, ORACLE):
        session.figure(f"{NAME}: LAR {variant}, {what}", found.mean_lar[variant])
    for each in found.aligned:
        if each.factor is not None:
            kind = "equal chunks" if each.factor == 1.0 else f"ragged, factor {each.factor:g}"
            session.figure(
                f"{NAME}: LAR after alignment, {each.batches}, {kind}, {what}",
                each.mean_lar,
                bound=f"{each.rows} rows; tokens {each.imbalance_before:.2f} before, {each.imbalance_after:.2f} after",
            )
    for name in ("T", "T raw", "A"):
        table = found.tables[name]
        session.figure(
            f"{NAME}: calibration error of {name}, {what}",
            table.calibration_error,
            bound=f"precision {table.precision:.3f}, recall {table.recall:.3f}, F1 {table.f1:.3f}",
        )
    session.figure(f"{NAME}: share of tokens that T decides, {what}", found.tables["T decides"].decides)
    base = found.traffic[0].counted
    for moved in found.traffic:
        session.figure(
            f"{NAME}: rows moved by {moved.schedule}, {what}",
            moved.counted,
            "rows a token and layer",
            bound=f"{100 * (1 - moved.counted / base):.1f} % fewer than allreduce; {moved.deduplicated:.2f} without "
            f"duplicates; LAR {moved.lar:.3f} after equal chunks of 256 mixed rows",
        )


def _devices_figures(session: Session, rows: Sequence[Compared], devices: int) -> None:
    for balance, what in ((FREE, "free load"), (HELD, "load <= 1.35 when fitted")):
        ours = entry(rows, OURS, balance)
        rivals = ", ".join(f"{name} {mean(entry(rows, name, balance).lar_chain):.3f}" for name in RIVALS)
        session.figure(
            f"{NAME}: held-out LAR by T and A, {devices} devices, {what}",
            mean(ours.lar_chain),
            bound=f"vanilla {1 / devices:.3f}, best device {mean(ours.lar_best):.3f}, "
            f"imbalance {mean(ours.load_imbalance):.2f}; {rivals}",
        )


def _transfer_figures(session: Session, fit: RouteTrace, heldout: RouteTrace) -> None:
    fits, judges = ({kind: of_label(trace, kind) for kind in KINDS} for trace in (fit, heldout))

    def place(trace: RouteTrace) -> np.ndarray:
        return session.placed(f"{NAME}: placement from {trace.num_tokens:,} tokens", trace, 4)

    if not session.quick:
        found = transfer(fits, judges, place)
        session.result.samples[f"{NAME}, transfer"] = [asdict(each) for each in found]
        transfer_figures(session, NAME, found)
    grown = by_length(fit, heldout, SHARES[-2:-1] if session.quick else SHARES[:-1], place, seed=session.seed)
    session.result.samples[f"{NAME}, length"] = [asdict(each) for each in grown]
    for each in grown:
        session.figure(
            f"{NAME}: LAR by T and A from {each.fit} of the sequences",
            each.lar_chain,
            bound=f"{each.fit_tokens:,} tokens, {each.unseen:.1%} of held-out ones unseen, T {each.lar_token:.3f}",
        )


def transfer_figures(session: Session, name: str, found: Sequence[Transferred], measure: str = "lar_chain") -> None:
    """Home and away means."""
    home = [getattr(each, measure) for each in found if each.fit == each.judged]
    away = [getattr(each, measure) for each in found if each.fit != each.judged]
    session.figure(
        f"{name}: LAR on another kind of text",
        mean(away),
        bound=f"{mean(home):.3f} on its own kind; kinds {', '.join(dict.fromkeys(each.fit for each in found))}",
    )


def of_label(trace: RouteTrace, label: str) -> RouteTrace:
    assert trace.labels is not None
    return select_sequences(trace, [i for i, each in enumerate(trace.labels) if each == label])


def _pictures(session: Session, rows: Sequence[Compared]) -> None:
    title = f"{NAME}, 4 devices, held-out sequences, mean of layers"
    plot_front(session.out / "regroup-front.png", rows, title, measure="lar_token")
    plot_front(session.out / "regroup-front-chain.png", rows, title, measure="lar_chain")
    settings = (("free load", FREE), ("load <= 1.35", HELD))
    histories = {f"{name}, {what}": entry(rows, name, b).history for name in (ALONE, OURS) for what, b in settings}
    plot_convergence(session.out / "regroup-convergence.png", histories, f"{NAME}, 4 devices")
