"""The built-in model on its four domains: everything, with history and unseen token ids."""

from dataclasses import asdict

import numpy as np

from smoe.bench.regroup.builtin import record
from smoe.bench.regroup.gpt_oss import of_label, transfer_figures
from smoe.bench.regroup.session import BASELINES, FREE, HELD, OURS, Session, describe, entry, mean
from smoe.clustering.evaluate import BOTH, CHAIN, VARIANTS, evaluate
from smoe.clustering.local import held_by
from smoe.clustering.plots import plot_lar_by_layer
from smoe.clustering.transfer import transfer
from smoe.core.route_edit import select_sequences, split
from smoe.core.route_trace import RouteTrace

NAME = "built-in model"
TEXTS, QUICK_TEXTS = 48, 6
DOMAINS = ("prose", "dialogue", "code", "maths")
DEVICES = 4
SMALL = 0.05


def run(session: Session) -> None:
    session.note(f"{NAME}: recording")
    trace, embedding = record(QUICK_TEXTS if session.quick else TEXTS)
    session.result.config[NAME] = describe(trace)
    fit, heldout = split(trace, 0.8, seed=session.seed)
    entries = [(name, balance) for name in (OURS, *BASELINES) for balance in (FREE, HELD)]
    rows = session.contest(f"{NAME}, {DEVICES} devices", fit, heldout, DEVICES, entries)
    slots = (trace.num_experts // DEVICES,) * DEVICES
    for what, balance in (("free load", FREE), ("load <= 1.35 when fitted", HELD)):
        ours = entry(rows, OURS, balance)
        best = max(mean(entry(rows, name, balance).lar_chain) for name in BASELINES)
        session.figure(
            f"{NAME}: LAR by T and A, {DEVICES} devices, {what}",
            mean(ours.lar_chain),
            goal="above every baseline under the same limit",
            met=mean(ours.lar_chain) > best,
            bound=f"best baseline {best:.3f}; imbalance {mean(ours.load_imbalance):.2f}",
        )
    placed = held_by(entry(rows, OURS, HELD).expert_device, DEVICES)
    found = evaluate(fit, heldout, placed, slots, embedding=embedding, seed=session.seed)
    session.result.samples[f"{NAME}, evaluation"] = found.as_json()
    for variant in VARIANTS:
        session.figure(f"{NAME}: LAR {variant}, load <= 1.35", found.mean_lar[variant])
    title = f"{NAME}, {DEVICES} devices, held-out, load <= 1.35 when fitted"
    plot_lar_by_layer(session.out / "regroup-builtin-lar-by-layer.png", found.lar, fit.layers, title)
    _unseen(session, fit, heldout, placed, slots, embedding)
    parts = {domain: split(of_label(trace, domain), 0.8, seed=session.seed) for domain in DOMAINS}
    fits, judges = ({domain: part[i] for domain, part in parts.items()} for i in (0, 1))
    moved = transfer(fits, judges, lambda part: session.placed(f"{NAME}: placement by domain", part, DEVICES))
    session.result.samples[f"{NAME}, transfer"] = [asdict(each) for each in moved]
    transfer_figures(session, NAME, moved)


def _unseen(
    session: Session,
    fit: RouteTrace,
    heldout: RouteTrace,
    placed: np.ndarray,
    slots: tuple[int, ...],
    embedding: np.ndarray,
) -> None:
    """What the nearest embedding is worth, where tables come from little text."""
    count = max(2, round(SMALL * fit.num_sequences))
    order = np.random.default_rng(session.seed).permutation(fit.num_sequences)
    part = select_sequences(fit, sorted(order[:count].tolist()))
    blind, near = (
        evaluate(part, heldout, placed, slots, embedding=given, seed=session.seed) for given in (None, embedding)
    )
    for variant in (BOTH, CHAIN):
        session.figure(
            f"{NAME}: LAR {variant}, tables from {count} sequences, unseen ids by nearest embedding",
            near.mean_lar[variant],
            bound=f"{blind.mean_lar[variant]:.3f} by the mean of all tokens; {near.unseen:.1%} of tokens unseen",
        )
