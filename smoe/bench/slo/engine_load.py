"""The closed loop without HTTP: straight through an EngineClient, records as the client of servers keeps them."""

import time
from collections.abc import Sequence

from smoe.bench.slo.client import Load, Order
from smoe.core.client import EngineClient
from smoe.core.request import Request
from smoe.core.sampling import SamplingParams
from smoe.metrics.serving import RequestRecord

_BAD_ENDS = ("abort", "error", "numeric_error")


class _Answer:
    def __init__(self, order: Order, sent_s: float) -> None:
        self.order, self.sent_s = order, sent_s
        self.chunk_s: list[float] = []
        self.chunk_tokens: list[int] = []
        self.error: str | None = None

    def record(self) -> RequestRecord:
        return RequestRecord(
            request_id=self.order.request_id,
            scheduled_s=self.sent_s,
            sent_s=self.sent_s,
            prompt_tokens=self.order.prompt_tokens,
            output_tokens=sum(self.chunk_tokens),
            chunk_s=tuple(self.chunk_s),
            chunk_tokens=tuple(self.chunk_tokens),
            error=self.error,
        )


def engine_load(client: EngineClient, orders: Sequence[Order], concurrency: int, *, ignore_eos: bool = True) -> Load:
    """`concurrency` orders in flight until all are answered; their prompts are token ids, their times do not count.
    Nobody else may use the client meanwhile."""
    answers: dict[str, _Answer] = {}
    waiting = list(reversed(orders))

    def send(count: int) -> None:
        batch = [waiting.pop() for _ in range(min(count, len(waiting)))]
        if not batch:
            return
        now = time.monotonic()
        answers.update({order.request_id: _Answer(order, now) for order in batch})
        client.submit([_request(order, ignore_eos) for order in batch])

    begun = time.monotonic()
    send(concurrency)
    left = len(orders)
    while left:
        deltas = client.poll()
        if not deltas:
            raise RuntimeError(f"the engine ended without {left} answers")
        now, ended = time.monotonic(), 0
        for delta in deltas:
            answer = answers[delta.request_id]
            if delta.token_ids:
                answer.chunk_s.append(now)
                answer.chunk_tokens.append(len(delta.token_ids))
            if delta.finish_reason is not None:
                ended += 1
                if delta.finish_reason in _BAD_ENDS:
                    answer.error = delta.error or f"the answer ended by {delta.finish_reason!r}"
        left -= ended
        send(ended)
    records = tuple(answers[order.request_id].record() for order in orders)
    return Load(records=records, begun_s=begun, ended_s=time.monotonic())


def _request(order: Order, ignore_eos: bool) -> Request:
    if isinstance(order.prompt, str):
        raise ValueError("an engine takes token ids, not text")
    params = SamplingParams(max_tokens=order.max_tokens, ignore_eos=ignore_eos)
    return Request(request_id=order.request_id, prompt_token_ids=order.prompt, params=params)
