"""Loads without HTTP: straight through an EngineClient, records as the client of servers keeps them."""

import time
from collections.abc import Sequence

from smoe.bench.slo.client import Load, Order
from smoe.core.client import EngineClient
from smoe.core.request import Delta, Request
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


class _Session:
    def __init__(self, client: EngineClient, orders: Sequence[Order], ignore_eos: bool) -> None:
        self._client, self._orders, self._ignore_eos = client, orders, ignore_eos
        self._answers: dict[str, _Answer] = {}
        self.begun = time.monotonic()
        self.left, self.in_flight = len(orders), 0

    def send(self, orders: Sequence[Order], due_s: Sequence[float]) -> None:
        if not orders:
            return
        self._answers.update({order.request_id: _Answer(order, at) for order, at in zip(orders, due_s, strict=True)})
        self._client.submit([_request(order, self._ignore_eos) for order in orders])
        self.in_flight += len(orders)

    def take(self, deltas: Sequence[Delta]) -> int:
        """Answers that ended."""
        now, ended = time.monotonic(), 0
        for delta in deltas:
            answer = self._answers[delta.request_id]
            if delta.token_ids:
                answer.chunk_s.append(now)
                answer.chunk_tokens.append(len(delta.token_ids))
            if delta.finish_reason is not None:
                ended += 1
                if delta.finish_reason in _BAD_ENDS:
                    answer.error = delta.error or f"the answer ended by {delta.finish_reason!r}"
        self.left, self.in_flight = self.left - ended, self.in_flight - ended
        return ended

    def load(self) -> Load:
        records = tuple(self._answers[order.request_id].record() for order in self._orders)
        return Load(records=records, begun_s=self.begun, ended_s=time.monotonic())


def engine_load(client: EngineClient, orders: Sequence[Order], concurrency: int, *, ignore_eos: bool = True) -> Load:
    """`concurrency` orders in flight until all are answered; their prompts are token ids, their times do not count.
    Nobody else may use the client meanwhile."""
    session, waiting = _Session(client, orders, ignore_eos), list(reversed(orders))

    def send(count: int) -> None:
        batch = [waiting.pop() for _ in range(min(count, len(waiting)))]
        session.send(batch, [time.monotonic()] * len(batch))

    send(concurrency)
    while session.left:
        deltas = client.poll()
        if not deltas:
            raise RuntimeError(f"the engine ended without {session.left} answers")
        send(session.take(deltas))
    return session.load()


def engine_open_load(client: EngineClient, orders: Sequence[Order], *, ignore_eos: bool = True) -> Load:
    """Each order when it is due or, while a step runs, at its end, where an engine takes requests in; latencies count
    from when it was due. `client` runs its steps on the thread that polls, one a poll, and is nobody else's."""
    session, due = _Session(client, orders, ignore_eos), sorted(orders, key=lambda order: order.at_s)
    sent = 0
    while session.left:
        now = time.monotonic() - session.begun
        first = sent
        while sent < len(due) and due[sent].at_s <= now:
            sent += 1
        session.send(due[first:sent], [session.begun + order.at_s for order in due[first:sent]])
        if session.in_flight:
            session.take(client.poll(0.0))
        else:
            time.sleep(max(0.0, session.begun + due[sent].at_s - time.monotonic()))
    return session.load()


def _request(order: Order, ignore_eos: bool) -> Request:
    if isinstance(order.prompt, str):
        raise ValueError("an engine takes token ids, not text")
    params = SamplingParams(max_tokens=order.max_tokens, ignore_eos=ignore_eos)
    return Request(request_id=order.request_id, prompt_token_ids=order.prompt, params=params)
