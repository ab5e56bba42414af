"""Changes to config.json that make it what other versions of transformers, or other people, write."""

from collections.abc import Callable
from typing import Any

Edit = Callable[[dict[str, Any]], None]


def v4_rope(scaling: dict[str, Any] | None, theta: float = 10000.0, **fields: Any) -> Edit:
    """`rope_theta` and `rope_scaling` as transformers 4 wrote them, instead of `rope_parameters`."""

    def edit(raw: dict[str, Any]) -> None:
        del raw["rope_parameters"]
        raw |= {"rope_theta": theta, "rope_scaling": scaling, **fields}

    return edit


def drop(*fields: str) -> Edit:
    def edit(raw: dict[str, Any]) -> None:
        for name in fields:
            raw.pop(name, None)

    return edit


def put(**fields: Any) -> Edit:
    def edit(raw: dict[str, Any]) -> None:
        raw |= fields

    return edit
