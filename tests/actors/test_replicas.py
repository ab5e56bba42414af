"""Replicas on Ray Serve: several of them, and one whose model does not load."""

import pytest

from smoe.core.errors import ConfigError
from tests.actors import fakes
from tests.actors.served import LENGTH, check_streams, generated, serving, shards, until

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("local_ray")]


def test_two_replicas_share_the_requests() -> None:
    both = serving(replicas=2)
    try:
        until(both, "serving", 2)
        with pytest.raises(ConfigError, match=r"^Ray Serve: 'runs on this cluster already' \(none: "):
            serving()
        assert len(shards()) == 2
        for _ in range(4):
            check_streams(both)
        assert max(generated(both) for _ in range(40)) < 16 * LENGTH, "the most that one replica has done"
    finally:
        both.close()


def test_a_model_that_does_not_load_is_told_with_its_cause() -> None:
    failing = serving(fakes.build_broken, replicas=1)
    try:
        [report] = until(failing, "failed", 1).values()
        assert report.failure == "model.safetensors: tensor `x` is missing"
    finally:
        failing.close()
