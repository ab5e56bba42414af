"""Every error that smoe raises on purpose.

    SmoeError
    |- ConfigError       (ValueError)       a field of the configuration or command line
    |- RequestError      (ValueError)       a field of one request; that request alone fails
    |- CheckpointError   (ValueError)       a model folder that cannot be loaded as it is
    |- TraceError        (ValueError)       a route or request trace: file, position, value
    |- PlacementError    (ValueError)       a placement of experts: file, layer, position, value
    |- NumericError      (ArithmeticError)  non-finite values in the forward of one request
    |- StoreError        (OSError)          reading expert weights failed: path and offset
    |- CapacityError     (MemoryError)      a hard bound is too small for the work
    |- CollectiveError   (RuntimeError)     an exchange between ranks failed: one is gone or late
    `- StartupError      (RuntimeError)     an actor or process group did not come up

A new error subclasses SmoeError *and* a standard class, takes plain picklable arguments (errors cross
process boundaries) and says field, value and limit in one line.
"""

__all__ = [
    "CapacityError",
    "CheckpointError",
    "CollectiveError",
    "ConfigError",
    "NumericError",
    "PlacementError",
    "RequestError",
    "SmoeError",
    "StartupError",
    "StoreError",
    "TraceError",
]


class SmoeError(Exception):
    """Base of all errors raised on purpose; `str(error)` is one line fit for a user."""


class _FieldError(SmoeError):
    def __init__(self, field: str, value: object, limit: str) -> None:
        super().__init__(field, value, limit)
        self.field, self.value, self.limit = field, value, limit

    def __str__(self) -> str:
        return f"{self.field}: {_shorten(self.value)} ({self.limit})"


class ConfigError(_FieldError, ValueError):
    """`field` has `value`, but must satisfy `limit`."""


class RequestError(_FieldError, ValueError):
    """A request's `field` has `value`, but must satisfy `limit`."""


class CheckpointError(SmoeError, ValueError):
    """A model folder is missing something, or holds something it should not; names file and tensor."""


class TraceError(SmoeError, ValueError):
    """A trace file is malformed; names file, position and value."""


class PlacementError(SmoeError, ValueError):
    """A placement breaks its rules or does not fit; names file, layer, position, value and limit."""


class NumericError(SmoeError, ArithmeticError):
    """Non-finite router logits or logits in one request's forward."""


class StoreError(SmoeError, OSError):
    """Expert weights could not be read; names path and offset."""


class CapacityError(SmoeError, MemoryError):
    """A memory bound is below what the work needs; names both."""


class CollectiveError(SmoeError, RuntimeError):
    """An exchange between ranks did not come about; names its purpose and the ranks."""


class StartupError(SmoeError, RuntimeError):
    """A worker did not start; the message is its first cause. `details` are further lines for whoever has room."""

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message, details)
        self.details = details

    def __str__(self) -> str:
        return str(self.args[0])


def _shorten(value: object, limit: int = 160) -> str:
    """Without its middle if it is long: the end of a path says most."""
    text = repr(value)
    half = limit // 2 - 2
    return text if len(text) <= limit else f"{text[:half]}...{text[-half:]}"
