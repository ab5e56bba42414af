"""Sampling parameters from options; one that could not change anything is refused."""

from smoe.cli.values import integer, no_effect, number
from smoe.core.sampling import SamplingParams


def sampling_params(
    *,
    max_tokens: str | None,
    temperature: str | None,
    top_p: str | None,
    top_k: str | None,
    seed: str | None,
    stop: list[str] | None,
    ignore_eos: bool = False,
    logprobs: str | None = None,
) -> SamplingParams:
    """Raises ConfigError or RequestError."""
    heat = number("temperature", temperature) or 0.0
    params = SamplingParams(
        max_tokens=integer("max_tokens", max_tokens),
        temperature=heat,
        top_p=1.0 if top_p is None else number("top_p", top_p) or 0.0,
        top_k=integer("top_k", top_k) or 0,
        seed=integer("seed", seed),
        stop=tuple(stop or ()),
        ignore_eos=ignore_eos,
        logprobs=integer("logprobs", logprobs),
    )
    if params.greedy:
        for name, value in (("top_p", top_p), ("top_k", top_k), ("seed", seed)):
            if value is not None:
                raise no_effect(name, value, "--temperature above 0")
    return params
