from collections.abc import Iterator

import pytest

from tests.actors import fakes, killers
from tests.actors.traced import Traced


@pytest.fixture(scope="session")
def local_ray() -> Iterator[None]:
    """One local Ray for all tests that use actors; clients find it and leave it running."""
    from ray import cloudpickle

    from smoe.actors.launch import open_ray

    session = open_ray(num_cpus=8)
    # Workers need not be able to import the tests.
    cloudpickle.register_pickle_by_value(fakes)
    cloudpickle.register_pickle_by_value(killers)
    yield
    session.close()


@pytest.fixture
def traced() -> Iterator[Traced]:
    traced = Traced()
    yield traced
    for process in traced.descendants():
        process.kill()
