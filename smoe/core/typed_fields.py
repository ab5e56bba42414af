"""Dataclasses made from plain mappings, strictly: no unknown field, no value of another type than the field's."""

import types
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from smoe.core.errors import ConfigError

T = TypeVar("T")
_WORDS = {str: "text", int: "an integer", float: "a number", bool: "true or false", type(None): "null"}


def from_mapping(kind: type[T], raw: Any, path: str) -> T:
    """`raw` may leave out fields with defaults; null is a mapping of none. Raises ConfigError saying `path.field`,
    its value and what was expected there, also for what the dataclass itself refuses."""
    names = [each.name for each in fields(kind)]  # type: ignore[arg-type]
    raw = {} if raw is None else raw
    if not isinstance(raw, dict):
        raise ConfigError(path, raw, f"a mapping of {', '.join(names)}")
    hints = get_type_hints(kind)
    values = {}
    for name, value in raw.items():
        where = f"{path}.{name}"
        if name not in names:
            raise ConfigError(where, value, f"no such field; one of {', '.join(names)}")
        if not _fits(value, hints[name]):
            raise ConfigError(where, value, _words(hints[name]))
        values[name] = value
    try:
        return kind(**values)
    except ConfigError as error:
        raise ConfigError(f"{path}.{error.field}", error.value, error.limit) from error


def _fits(value: Any, hint: Any) -> bool:
    origin = get_origin(hint)
    if origin is Literal:
        return value in get_args(hint) and isinstance(value, str)
    if origin in (Union, types.UnionType):
        return any(_fits(value, each) for each in get_args(hint))
    if origin is not None and issubclass(origin, Mapping):
        key, item = get_args(hint)
        return isinstance(value, dict) and all(_fits(k, key) and _fits(v, item) for k, v in value.items())
    if isinstance(value, bool):
        return hint is bool
    return isinstance(value, (int, float) if hint is float else hint)


def _words(hint: Any) -> str:
    origin = get_origin(hint)
    if origin is Literal:
        return f"one of {', '.join(map(str, get_args(hint)))}"
    if origin in (Union, types.UnionType):
        return " or ".join(_words(each) for each in get_args(hint))
    if origin is not None:
        return f"a mapping of {' to '.join(_words(each) for each in get_args(hint))}"
    return _WORDS[hint]
