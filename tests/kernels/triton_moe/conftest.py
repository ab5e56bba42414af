"""The paths of tests/kernels/routing: twins, the interpreter (started by its test_interpreter.py), a GPU."""

from tests.kernels.routing.conftest import dtype, path, put

__all__ = ["dtype", "path", "put"]
