"""An instance of DeepSeek-V2's size, made up: how long, how much memory, and how both grow."""

import time
from dataclasses import dataclass, replace

import numpy as np

from smoe.bench.regroup.session import OURS, THETA, Session
from smoe.clustering.catalog import make_solver
from smoe.clustering.local import held_by
from smoe.clustering.problem import Balance
from smoe.clustering.problems import layer_problem
from smoe.clustering.tables import build_tables
from smoe.core.route_trace import DECODE, Array, RouteTrace
from smoe.engine.rss import peak_rss_bytes

BALANCE = Balance(theta=THETA, max_load=1.35)
TOPICS, LENGTH = 64, 512
GOAL_S, GOAL_BYTES = 900.0, 4e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """One layer; `layer` seeds it."""

    tokens: int = 400_000
    experts: int = 160
    devices: int = 8
    top_k: int = 6
    vocab: int = 102_400
    layer: int = 0


@dataclass(frozen=True, slots=True)
class Measured:
    solve_s: float
    table_s: float
    peak_rss_bytes: int


def run(session: Session) -> None:
    layers = 4 if session.quick else 59
    size = Size(tokens=100_000) if session.quick else Size()
    items = [replace(size, layer=layer) for layer in range(layers)]
    session.note(f"scale: {layers} layers of {size}")
    began, found = time.perf_counter(), []
    for _, measured in session.fan_out(solve, items, BALANCE):
        found.append(measured)
        session.note(f"scale: {len(found)}/{layers} layers, {measured.solve_s:.1f} s the last")
    seconds = time.perf_counter() - began
    worker = max(each.peak_rss_bytes for each in found)
    session.result.samples["scale"] = [
        {"solve_s": each.solve_s, "table_s": each.table_s, "peak_rss_bytes": each.peak_rss_bytes} for each in found
    ]
    whole = not session.quick
    session.figure(
        f"scale: {layers} layers of {size.experts} experts, {size.vocab:,} token ids, {size.devices} devices",
        seconds,
        "s",
        goal="<= 900 s on two cores" if whole else None,
        met=seconds <= GOAL_S if whole else None,
        bound=f"{size.tokens:,} tokens a layer; solving {sum(e.solve_s for e in found):.0f} core-seconds, "
        f"tables {sum(e.table_s for e in found):.0f}; routes made up, with {TOPICS} topics",
    )
    session.figure(
        "scale: peak memory of a worker",
        worker / 1e9,
        "GB",
        goal="<= 4 GB in all" if whole else None,
        met=2 * worker + peak_rss_bytes() <= GOAL_BYTES if whole else None,
        bound=f"two workers and this process, {peak_rss_bytes() / 1e9:.2f} GB",
    )
    _growth(session, Size(tokens=size.tokens // 4))


def _growth(session: Session, base: Size) -> None:
    lines: dict[str, list[Size]] = {
        "tokens": [replace(base, tokens=base.tokens * n) for n in (1, 2, 4)],
        "experts": [replace(base, experts=n) for n in (40, 80, 160)],
        "devices": [replace(base, devices=n) for n in (2, 4, 8)],
    }
    for what, sizes in lines.items():
        session.note(f"scale: growth with {what}")
        found = dict(session.fan_out(solve, sizes, BALANCE))
        seconds = [found[i].solve_s for i in range(len(sizes))]
        counts = [getattr(size, what) for size in sizes]
        session.result.samples[f"growth with {what}"] = dict(zip(map(str, counts), seconds, strict=True))
        power = float(np.polyfit(np.log(counts), np.log(seconds), 1)[0])
        session.figure(
            f"scale: solving time grows with {what} to the power",
            power,
            "",
            bound=", ".join(f"{n:,}: {s:.1f} s" for n, s in zip(counts, seconds, strict=True)),
        )


def solve(size: Size, balance: Balance) -> Measured:
    """A layer solved, and its tables made."""
    trace = made_up(size)
    slots = (size.experts // size.devices,) * size.devices
    began = time.perf_counter()
    solution = make_solver(OURS).solve(layer_problem(trace, 0, slots), balance, 0)
    solved = time.perf_counter()
    build_tables(trace, held_by(solution.expert_device, size.devices)[None], vocab_size=size.vocab)
    return Measured(solved - began, time.perf_counter() - solved, peak_rss_bytes())


def made_up(size: Size) -> RouteTrace:
    """Zipf-like token ids; an id belongs to a topic or two, and a topic likes some experts."""
    chance = np.random.default_rng([size.layer, size.experts])
    ids = (chance.pareto(1.0, size.tokens) * 20).astype(np.int64) % size.vocab
    topic_taste = chance.gumbel(size=(TOPICS, size.experts)).astype(np.float32) * 1.5
    topic = chance.integers(0, TOPICS, (size.vocab, 2))
    parts = [_route(ids[i : i + 65_536], topic, topic_taste, size.top_k, chance) for i in range(0, size.tokens, 65_536)]
    start = np.append(np.arange(0, size.tokens, LENGTH), size.tokens).astype(np.int64)
    return RouteTrace(
        fingerprint="made up",
        num_experts=size.experts,
        top_k=size.top_k,
        layers=(size.layer,),
        token_ids=ids.astype(np.int32),
        sequence_start=start,
        phase=np.full(size.tokens, DECODE, dtype=np.uint8),
        expert_ids=np.concatenate(parts)[None],
    )


def _route(ids: Array, topic: Array, taste: Array, top_k: int, chance: np.random.Generator) -> Array:
    score = taste[topic[ids, 0]] + 0.5 * taste[topic[ids, 1]]
    score += chance.standard_normal(score.shape, dtype=np.float32)
    return np.argpartition(-score, top_k, axis=1)[:, :top_k].astype(np.int16)
