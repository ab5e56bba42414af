"""All solvers on one trace, for `smoe regroup --compare`: entries, and the files that come of them."""

import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from smoe.clustering.catalog import SOLVERS
from smoe.clustering.compare import Compared, Contest, FanOut, compare
from smoe.clustering.plots import plot_convergence, plot_front
from smoe.clustering.problem import Balance
from smoe.clustering.regroup import RegroupJob
from smoe.clustering.solver_options import available, configured_solver
from smoe.core.errors import ConfigError

THETAS = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Of the solver that the job was asked for, so that its front shows what balance costs."""


def compare_all(
    job: RegroupJob, *, fan_out: FanOut | None = None, progress: Callable[[str, int, int], None] | None = None
) -> list[Compared]:
    """The job's solver first, at its own balance, without a limit of load and at THETAS; every other at its own
    balance and without a limit, but for `exact`, which is for small problems, and those whose library is missing."""
    if job.fit is None or job.heldout is None:
        raise ConfigError("compare", True, "a trace: loads tell nothing of where tokens are")
    config = job.config
    own, free = job.rules.balance, Balance(theta=config.theta)
    names = [config.solver, *(n for n in SOLVERS if n not in (config.solver, "exact") and available(n))]
    balances = [own] if own == free else [own, free]
    entries = [(config.solver, balance) for balance in balances]
    entries += [(config.solver, Balance(theta=theta)) for theta in THETAS if theta != config.theta]
    entries += [(name, balance) for name in names[1:] for balance in balances]
    options = {config.solver: config.solver_options}
    contest = Contest(
        fit=job.fit,
        heldout=job.heldout,
        solvers=tuple(configured_solver(name, options.get(name, {})) for name in names),
        slots_of_device=job.rules.slots_of_device,
        seed=config.seed,
        expert_group=job.rules.expert_group,
    )
    return compare(contest, entries, fan_out=fan_out, progress=progress)


def comparison_files(job: RegroupJob, rows: Sequence[Compared]) -> dict[str, bytes]:
    """compare.json and pictures, by name."""
    config, own = job.config, rows[0]
    measure = "lar_token" if job.fit is not None and (job.fit.token_ids >= 0).any() else "lar_best"
    title = f"{config.trace}: {len(job.rules.slots_of_device)} devices, held out"
    with tempfile.TemporaryDirectory() as folder:
        drawn = [plot_front(Path(folder) / "front.png", rows, title, measure=measure)]
        histories = {f"theta {row.balance.theta}": row.history for row in rows if row.solver == own.solver}
        if any(len(history) > 1 for layers in histories.values() for history in layers):
            drawn.append(plot_convergence(Path(folder) / "convergence.png", histories, f"{title}: {own.solver}"))
        files = {path.name: path.read_bytes() for path in drawn}
    report = {"config": config.as_json(), "rows": [row.as_json() for row in rows]}
    return files | {"compare.json": (json.dumps(report, indent=1) + "\n").encode()}
