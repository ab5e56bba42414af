"""ParallelConfig: sizes and what goes with them, refused with the field that is wrong."""

import pytest

from smoe.core.errors import ConfigError
from smoe.core.parallel import ParallelConfig


def test_devices_are_groups_times_ranks() -> None:
    assert ParallelConfig().size == 1
    assert ParallelConfig(tensor_parallel_size=3, data_parallel_size=2).size == 6
    assert ParallelConfig(data_parallel_size=4, placement="p", data_parallel_routing="tables", dedup=False).size == 4


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"data_parallel_size": 0}, r"^data_parallel_size: 0 \(integer >= 1\)$"),
        ({"tensor_parallel_size": 0}, r"^tensor_parallel_size: 0 \(integer >= 1\)$"),
        ({"data_parallel_routing": "odd"}, r"^data_parallel_routing: 'odd' \(one of even, tables\)$"),
        (
            {"data_parallel_routing": "tables", "placement": "p"},
            r"^data_parallel_routing: 'tables' \(even with ",
        ),
        (
            {"data_parallel_routing": "tables", "data_parallel_size": 2},
            r"^data_parallel_routing: 'tables' \(needs a ",
        ),
        ({"schedule": "allreduce", "data_parallel_size": 2}, r"^schedule: 'allreduce' \(has no effect without tensor"),
        ({"schedule": "speculative", "data_parallel_size": 2, "placement": "p"}, r"^schedule: 'speculative' \(has no "),
        (
            {"schedule": "allreduce"},
            r"^schedule: 'allreduce' \(has no effect on one device: needs tens",
        ),
        ({"placement": "p"}, r"^placement: 'p' \(has no effect on one device"),
        ({"dedup": False}, r"^dedup: False \(has no effect on one device"),
        (
            {"tensor_parallel_size": 2, "deterministic": False},
            r"^deterministic: False \(only with schedule allreduce",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ParallelConfig(**values)  # type: ignore[arg-type]
