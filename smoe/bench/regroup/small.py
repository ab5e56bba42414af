"""Instances small enough for the exact optimum."""

from collections.abc import Sequence

import numpy as np
from scipy.sparse import csr_array

from smoe.bench.regroup.session import FREE, HELD, OURS, Session, mean
from smoe.clustering.catalog import make_solver
from smoe.clustering.objective import objective
from smoe.clustering.problem import Balance, LayerProblem
from smoe.clustering.problems import layer_problem
from smoe.core.route_trace import RouteTrace

COUNTS, QUICK_COUNTS = (50, 10), (6, 2)
"""Random ones, and parts of real layers."""
ROWS = 16
MOST_EACH = 4
"""Experts a device: the optimum of 12 experts on 3 devices takes seconds, of 12 on 2 half a minute."""
LIMIT = 0.01
BALANCES = (FREE, HELD, Balance(theta=0.5), Balance(theta=0.5, max_load=1.35))


def run(session: Session, trace: RouteTrace) -> None:
    """Half of the instances with the load limited, half with token balance above locality."""
    count = QUICK_COUNTS if session.quick else COUNTS
    chance = np.random.default_rng(session.seed)
    made = [("random", drawn(chance)) for _ in range(count[0])]
    made += [("real", cut(trace, chance)) for _ in range(count[1])]
    session.note(f"small instances against the optimum: {len(made)}")
    items = [(problem, BALANCES[i % len(BALANCES)]) for i, (_, problem) in enumerate(made)]
    found = dict(session.fan_out(excess, items, OURS))
    for kind in ("random", "real"):
        gaps = [found[i] for i, (each, _) in enumerate(made) if each == kind]
        session.result.samples[f"small {kind} instances, excess over the optimum"] = gaps
        within = sum(gap <= LIMIT for gap in gaps)
        session.figure(
            f"small {kind} instances: worst excess over the optimum",
            100 * max(gaps),
            "%",
            goal="<= 1 %",
            met=within == len(gaps),
            bound=f"{within} of {len(gaps)} within 1 %, mean {100 * mean(gaps):.3f} %; up to 12 experts, 3 devices; "
            "theta 0.001 and 0.5",
        )


def excess(item: tuple[LayerProblem, Balance], ours: str) -> float:
    """Our objective over the exact one, minus one; where the optimum is nought, the share of activations remote."""
    problem, balance = item
    own, exact = (
        objective(problem, make_solver(name).solve(problem, balance, 0), balance.theta) for name in (ours, "exact")
    )
    return (own - exact) / exact if exact > 1e-9 else own / float(problem.counts.sum())


def drawn(chance: np.random.Generator) -> LayerProblem:
    """Row tastes are uneven, so that grouping matters."""
    devices = int(chance.integers(2, 4))
    each = int(chance.integers(2, MOST_EACH + 1))
    experts = devices * each
    taste = chance.dirichlet(np.full(experts, 0.3), ROWS)
    mass = chance.integers(1, 30, ROWS)
    counts = np.stack([chance.multinomial(2 * n, share) for n, share in zip(mass, taste, strict=True)])
    return LayerProblem(counts=csr_array(counts), mass=mass.astype(np.float64), slots_of_device=(each,) * devices)


def cut(trace: RouteTrace, chance: np.random.Generator) -> LayerProblem:
    """Four experts a device of a real layer, and the rows that use them most."""
    layer = int(chance.integers(len(trace.layers)))
    devices = int(chance.integers(2, 4))
    whole = layer_problem(trace, layer, (trace.num_experts,))
    experts = np.sort(chance.choice(trace.num_experts, devices * MOST_EACH, replace=False))
    counts = whole.counts.toarray()[:, experts]
    busiest: Sequence[int] = np.argsort(-counts.sum(axis=1), kind="stable")[:ROWS].tolist()
    part = counts[busiest]
    mass = np.ceil(part.sum(axis=1) / trace.top_k)
    return LayerProblem(counts=csr_array(part), mass=mass, slots_of_device=(MOST_EACH,) * devices)
