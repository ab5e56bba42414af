"""Runs a kernel test once per variant of the library that this machine has, and once with the torch twins."""

from collections.abc import Iterator

import pytest
import torch

from smoe.kernels import native


@pytest.fixture(autouse=True)
def _settings() -> Iterator[None]:
    torch.manual_seed(7)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    native.use("auto")


@pytest.fixture(params=["avx512", "avx2", "torch"])
def variant(request: pytest.FixtureRequest) -> str:
    """The variant in use: what the test builds runs on it."""
    return _use(str(request.param))


@pytest.fixture(params=["avx512", "avx2"])
def native_variant(request: pytest.FixtureRequest) -> str:
    """Promises about bits are the library's, not the twins'."""
    return _use(str(request.param))


def _use(name: str) -> str:
    try:
        native.use(name)
    except ValueError as error:
        pytest.skip(str(error))
    return name
