"""What is said when shards find no room."""

import pytest

from smoe.actors.demand import Node, fitting, shortage
from smoe.core.errors import StartupError

NODES = [
    Node("10.0.0.1", {"CPU": 8.0, "GPU": 2.0}, {"CPU": 5.0, "GPU": 1.0}),
    Node("10.0.0.2", {"CPU": 4.0}, {"CPU": 4.0}),
    Node("10.0.0.3", {"CPU": 16.0, "GPU": 4.0, "fast": 1.0}, {"CPU": 16.0, "GPU": 4.0, "fast": 1.0}),
]


def test_shards_that_fit_are_bound_by_what_is_scarcest() -> None:
    assert [fitting({"CPU": 2.0, "GPU": 1.0}, node.available) for node in NODES] == [1, 0, 4]
    assert fitting({"CPU": 0.1}, {"CPU": 0.3}) == 3
    assert fitting({"CPU": 1.0, "fast": 0.5}, NODES[2].available) == 2


def test_the_table_has_the_demand_and_every_node() -> None:
    summary, table = shortage({"CPU": 2.0, "GPU": 1.0}, 8, "PACK", NODES, 60.0)
    assert summary == "placement: 8 x (CPU 2, GPU 1) by PACK (room for 5 on 3 nodes after 60 s)"
    assert [line.split() for line in table.splitlines()] == [
        ["node", "CPU", "free/all", "GPU", "free/all", "shards", "that", "fit"],
        ["demanded", "8", "x", "2", "8", "x", "1", "8"],
        ["10.0.0.1", "5/8", "1/2", "1"],
        ["10.0.0.2", "4/4", "0/0", "0"],
        ["10.0.0.3", "16/16", "4/4", "4"],
    ]
    assert len({len(line) for line in table.splitlines()}) == 1


def test_strict_pack_counts_the_best_node() -> None:
    summary, _ = shortage({"CPU": 2.0, "GPU": 1.0}, 5, "STRICT_PACK", NODES, 1.5)
    assert summary.endswith("by STRICT_PACK (room for 4 on one node after 1.5 s)")


def test_no_node_is_said_too() -> None:
    summary, table = shortage({"CPU": 1.0}, 1, "PACK", [], 1.0)
    assert "room for 0 on 0 nodes" in summary
    assert len(table.splitlines()) == 2


@pytest.mark.parametrize("details", ["", "a table\nof lines"])
def test_the_error_says_one_line_and_keeps_the_rest(details: str) -> None:
    import pickle

    error = pickle.loads(pickle.dumps(StartupError("no room", details)))
    assert (str(error), error.details) == ("no room", details)
