"""Option values that are checked here rather than by the argument parser, so that every refusal reads alike."""

from pathlib import Path

from smoe.core.errors import ConfigError


def integer(field: str, text: str | None) -> int | None:
    """Raises ConfigError. The range is checked by whoever knows it."""
    if text is None:
        return None
    try:
        return int(text)
    except ValueError as error:
        raise ConfigError(field, text, "integer") from error


def number(field: str, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return float(text)
    except ValueError as error:
        raise ConfigError(field, text, "number") from error


def token_ids(text: str) -> tuple[int, ...]:
    """`1,2,3`. Raises ConfigError."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise ConfigError("prompt_token_ids", text, "integers between commas, as in 1,2,3") from error


def utf8(field: str, data: bytes) -> str:
    """Raises ConfigError naming the first byte that is not UTF-8."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(field, data, f"UTF-8; byte {data[error.start]:#04x} at position {error.start}") from error


def read_text(field: str, name: str, stdin: bytes | None = None) -> str:
    """The text of a file, or of `stdin` for `-`. Raises ConfigError."""
    if name == "-" and stdin is not None:
        return utf8("stdin", stdin)
    try:
        return utf8(field, Path(name).read_bytes())
    except OSError as error:
        raise ConfigError(field, name, f"a readable file: {error.strerror}") from error


def no_effect(field: str, value: object, needs: str) -> ConfigError:
    """For an option that was given and would change nothing."""
    return ConfigError(field, value, f"has no effect without {needs}")
