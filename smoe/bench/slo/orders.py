"""From a plan of lengths and times to orders with prompts."""

from collections.abc import Callable, Sequence

from smoe.bench.slo.client import Order
from smoe.workload.plan import Plan
from smoe.workload.prompts import PromptCutter


def orders_of(
    plan: Plan, text: Sequence[int], seed: int, *, decode: Callable[[Sequence[int]], str] | None = None
) -> list[Order]:
    """Prompts are token ids, or with `decode` their text, which the server may cut into slightly other numbers."""
    prompts = PromptCutter(text, seed).cut(plan)
    return [
        Order(
            request_id=str(index),
            at_s=arrival.at_s,
            prompt=prompt if decode is None else decode(prompt),
            prompt_tokens=len(prompt),
            max_tokens=arrival.output_tokens,
        )
        for index, (arrival, prompt) in enumerate(zip(plan.arrivals, prompts, strict=True))
    ]
