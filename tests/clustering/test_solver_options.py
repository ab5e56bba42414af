import pytest

from smoe.clustering.solver_options import configured_solver
from smoe.core.errors import ConfigError


def test_options_are_fields_of_the_solvers_config() -> None:
    solver = configured_solver("cross-entropy", {"samples": 16, "smoothing": 1})
    assert solver.name == "cross-entropy"
    assert (solver.config.samples, solver.config.smoothing) == (16, 1)  # type: ignore[attr-defined]
    assert configured_solver("eplb", {}).name == "eplb"


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("magic", {}, r"solver: 'magic' \(one of cross-entropy, "),
        ("eplb", {"samples": 3}, r"solver_options: \{'samples': 3\} \(none: eplb has no options\)"),
        ("cross-entropy", {"sample": 3}, r"solver_options\.sample: 3 \(one of samples, "),
        ("cross-entropy", {"samples": 3.5}, r"solver_options\.samples: 3\.5 \(as "),
        ("cross-entropy", {"samples": "many"}, r"solver_options\.samples: 'many' \(as "),
        ("cross-entropy", {"samples": 0}, r"samples: 0"),
    ],
)
def test_bad_options(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        configured_solver(name, options)
