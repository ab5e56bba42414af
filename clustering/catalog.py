"""Every solver by name."""

from collections.abc import Callable

from smoe.clustering import inter_layer, kmeans, metis, simple
from smoe.clustering.alternating import Alternating
from smoe.clustering.baseline import Baseline
from smoe.clustering.cross_entropy import CrossEntropy
from smoe.clustering.exact import Exact
from smoe.clustering.problem import Solver
from smoe.core.errors import ConfigError

SOLVERS: dict[str, Callable[[], Solver]] = {
    "cross-entropy": CrossEntropy,
    "contiguous": lambda: Baseline("contiguous", simple.contiguous),
    "random": lambda: Baseline("random", simple.random),
    "eplb": lambda: Baseline("eplb", simple.eplb),
    "metis": lambda: Baseline("metis", metis.metis),
    "kmeans": lambda: Baseline("kmeans", kmeans.kmeans),
    "alternating": lambda: Baseline("alternating", Alternating()),
    "inter-layer": lambda: Baseline("inter-layer", inter_layer.inter_layer),
    "exact": Exact,
}
"""The first is what the job uses unless told otherwise; `exact` takes small problems only."""


def make_solver(name: str) -> Solver:
    """Raises ConfigError, which lists the names, for one that is not known."""
    if name not in SOLVERS:
        raise ConfigError("solver", name, f"one of {', '.join(SOLVERS)}")
    return SOLVERS[name]()
