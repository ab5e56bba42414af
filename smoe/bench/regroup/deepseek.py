"""DeepSeek-V2-Lite's prefill routes: no token ids, so grouping alone, by task."""

from collections.abc import Sequence
from dataclasses import asdict

import numpy as np

from smoe.bench.regroup.gpt_oss import of_label, transfer_figures
from smoe.bench.regroup.session import BASELINES, FREE, HELD, OURS, Session, entry, mean
from smoe.clustering.compare import Compared
from smoe.clustering.plots import plot_front
from smoe.clustering.transfer import transfer
from smoe.core.route_edit import split
from smoe.core.route_trace import RouteTrace

NAME = "DeepSeek-V2-Lite"
TASKS = ("intent", "law", "summary", "translation")


def run(session: Session, trace: RouteTrace) -> None:
    fit, heldout = split(trace, 0.8, seed=session.seed)
    names = (OURS, "contiguous", "metis") if session.quick else (OURS, *BASELINES)
    entries = [(name, balance) for name in names for balance in (FREE, HELD)]
    for devices in (4,) if session.quick else (4, 8):
        rows = session.contest(f"{NAME}, {devices} devices", fit, heldout, devices, entries)
        _figures(session, rows, devices, names[1:])
        title = f"{NAME}, {devices} devices, held-out sequences, mean of layers"
        plot_front(session.out / f"regroup-deepseek-{devices}.png", rows, title, measure="lar_best")
    if not session.quick:
        _transfer(session, trace)


def _figures(session: Session, rows: Sequence[Compared], devices: int, baselines: Sequence[str]) -> None:
    for balance, what in ((FREE, "free load"), (HELD, "load <= 1.35 when fitted")):
        ours = entry(rows, OURS, balance)
        others = {name: entry(rows, name, balance) for name in baselines}
        load = f"imbalance {mean(ours.load_imbalance):.2f}"
        needed = min(mean(row.needed_devices) for row in others.values())
        session.figure(
            f"{NAME}: devices that a token needs, {devices} devices, {what}",
            mean(ours.needed_devices),
            "devices",
            goal="below every baseline",
            met=mean(ours.needed_devices) < needed,
            bound="; ".join([load, *(f"{name} {mean(row.needed_devices):.2f}" for name, row in others.items())]),
        )
        best = max(mean(row.lar_best) for row in others.values())
        session.figure(
            f"{NAME}: local share on a token's best device, {devices} devices, {what}",
            mean(ours.lar_best),
            goal="above every baseline",
            met=mean(ours.lar_best) > best,
            bound="; ".join(
                f"{name} {mean(row.lar_best):.3f} at {mean(row.load_imbalance):.2f}" for name, row in others.items()
            ),
        )


def _transfer(session: Session, trace: RouteTrace) -> None:
    parts = {task: split(of_label(trace, task), 0.8, seed=session.seed) for task in TASKS}

    def place(fit: RouteTrace) -> np.ndarray:
        return session.placed(f"{NAME}: placement from {fit.num_tokens:,} tokens", fit, 4)

    fits, judges = ({task: part[i] for task, part in parts.items()} for i in (0, 1))
    found = transfer(fits, judges, place)
    session.result.samples[f"{NAME}, transfer"] = [asdict(each) for each in found]
    transfer_figures(session, f"{NAME}, 4 devices, best device", found, "lar_best")
