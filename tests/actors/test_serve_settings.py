"""Which settings Ray Serve's processes get."""

import pytest

from smoe.actors.serve_settings import GENERAL, listens_itself, of_actors


def test_the_only_replica_of_a_local_ray_listens_itself() -> None:
    assert listens_itself(1, {}, local=True)
    assert not listens_itself(2, {}, local=True), "one port, two replicas"
    assert not listens_itself(1, {}, local=False), "it may be on another machine than the address"


@pytest.mark.parametrize("name", ["RAY_SERVE_ENABLE_DIRECT_INGRESS", "RAY_SERVE_ENABLE_HA_PROXY"])
def test_who_has_decided_who_listens_is_not_overruled(name: str) -> None:
    assert not listens_itself(1, {name: "0"}, local=True)


def test_a_cluster_is_told_what_the_user_has_set() -> None:
    assert of_actors({}, None, local=False) == GENERAL
    assert of_actors({"RAY_SERVE_LOG_TO_STDERR": "1"}, None, local=False)["RAY_SERVE_LOG_TO_STDERR"] == "1"
    assert of_actors({}, None, local=True) == {}


def test_the_range_of_ports_has_the_one_asked_for() -> None:
    found = of_actors({}, ("127.0.0.1", 8000), local=True)
    ports = range(*(int(found[f"RAY_SERVE_DIRECT_INGRESS_{end}_HTTP_PORT"]) for end in ("MIN", "MAX")))
    assert list(ports) == [8000], "Ray Serve takes them from such a range"
    assert found["RAY_SERVE_ENABLE_DIRECT_INGRESS"] == "1"
