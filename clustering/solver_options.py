"""Solvers with options, as a configuration or the command line gives them."""

import importlib.util
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass, replace
from typing import Any

from smoe.clustering.catalog import make_solver
from smoe.clustering.problem import Solver
from smoe.core.errors import ConfigError

_LIBRARIES = {"metis": "pymetis"}


def available(name: str) -> bool:
    """Whether the library that a solver needs is installed."""
    return name not in _LIBRARIES or importlib.util.find_spec(_LIBRARIES[name]) is not None


def configured_solver(name: str, options: Mapping[str, Any]) -> Solver:
    """Options are the fields of the solver's `config`. Raises ConfigError for one that it does not have or whose
    value is of another kind, and for a solver whose library is missing."""
    solver: Any = make_solver(name)
    if not available(name):
        raise ConfigError("solver", name, f"needs {_LIBRARIES[name]}, as in pip install smoe[bench]")
    if not options:
        return solver  # type: ignore[no-any-return]
    config = getattr(solver, "config", None)
    if not is_dataclass(config) or isinstance(config, type):
        raise ConfigError("solver_options", dict(options), f"none: {name} has no options")
    known = asdict(config)
    for option, value in options.items():
        if option not in known:
            raise ConfigError(f"solver_options.{option}", value, f"one of {', '.join(known)}")
        kind = type(known[option])
        fits = type(value) in (int, float) if kind is float else type(value) is kind
        if not fits:
            raise ConfigError(f"solver_options.{option}", value, f"as {known[option]!r}")
    return replace(solver, config=replace(config, **options))  # type: ignore[no-any-return]
