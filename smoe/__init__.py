"""smoe: Mixture-of-Experts inference where weights or tokens have to travel. Names are imported on first use."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smoe.core.sampling import SamplingParams
    from smoe.llm import LLM

__all__ = ["LLM", "SamplingParams"]


def __getattr__(name: str) -> object:
    if name == "LLM":
        from smoe.llm import LLM

        return LLM
    if name == "SamplingParams":
        from smoe.core.sampling import SamplingParams

        return SamplingParams
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
