"""The closed loop through an engine that answers by script."""

from collections.abc import Sequence
from typing import Any, cast

import pytest

from smoe.bench.slo.client import Order
from smoe.bench.slo.engine_load import engine_load
from smoe.bench.throughput import Batches, run
from smoe.core.client import EngineClient
from smoe.core.request import Delta, FinishReason, Request


class Engine:
    """One token a poll for every request in flight, two with the last poll of each. `fails` names one that does not
    end well."""

    def __init__(self, fails: str | None = None) -> None:
        self.flight: dict[str, list[int]] = {}
        self.most, self.submitted, self._fails = 0, [], fails

    def submit(self, requests: Sequence[Request]) -> None:
        self.submitted += requests
        self.flight.update({r.request_id: [r.params.max_tokens or 0] for r in requests})
        self.most = max(self.most, len(self.flight))

    def poll(self, timeout_s: float | None = None) -> list[Delta]:
        deltas = []
        for name, left in list(self.flight.items()):
            count = 2 if left[0] == 2 else 1
            left[0] -= count
            reason: FinishReason | None = None
            if not left[0]:
                reason = "error" if name == self._fails else "length"
                del self.flight[name]
            deltas.append(Delta(request_id=name, text="x", token_ids=(7,) * count, finish_reason=reason))
        return deltas


def orders(count: int, tokens: int = 4) -> list[Order]:
    return [
        Order(request_id=str(i), at_s=0.0, prompt=(1, 2, i), prompt_tokens=3, max_tokens=tokens) for i in range(count)
    ]


def client(engine: Engine) -> EngineClient:
    return cast(EngineClient, engine)


@pytest.mark.parametrize("concurrency", [1, 3, 50])
def test_so_many_are_in_flight_until_all_are_answered(concurrency: int) -> None:
    engine = Engine()
    load = engine_load(client(engine), orders(8), concurrency)
    assert engine.most == min(concurrency, 8)
    assert [record.request_id for record in load.records] == [str(i) for i in range(8)]
    for record in load.records:
        assert (record.output_tokens, record.chunk_tokens) == (4, (1, 1, 2))
        assert load.begun_s <= record.sent_s <= record.chunk_s[0] <= record.chunk_s[-1] <= load.ended_s
        assert not record.failed
    assert all(request.params.ignore_eos and request.params.max_tokens == 4 for request in engine.submitted)


def test_a_bad_end_is_a_failure_of_that_request() -> None:
    load = engine_load(client(Engine(fails="1")), orders(3), 2)
    assert [record.error for record in load.records] == [None, "the answer ended by 'error'", None]


def test_text_is_refused_and_an_engine_that_stops_is_told() -> None:
    class Silent(Engine):
        def poll(self, timeout_s: float | None = None) -> list[Delta]:
            return []

    text = Order(request_id="t", at_s=0, prompt="hello", prompt_tokens=1, max_tokens=1)
    with pytest.raises(ValueError, match="token ids, not text"):
        engine_load(client(Engine()), [text], 1)
    with pytest.raises(RuntimeError, match="without 2 answers"):
        engine_load(client(Silent()), orders(2), 1)


def test_throughput_of_each_batch_in_turn() -> None:
    engine = Engine()
    batches = Batches(sizes=(1, 4), input_len=5, output_len=3, rounds=2, repeats=2, seed=0)
    told: list[Any] = []
    result = run(client(engine), batches, range(100), {"seed": 0}, lambda: told.append(engine.most))
    assert told == [1, 4, 4, 4, 4, 4]  # batch 1, batch 4, and again: one that does not count, two that do
    names = [figure.figure for figure in result.summary]
    assert [name for name in names if name.startswith("generated")] == ["generated, batch 1", "generated, batch 4"]
    assert all(figure.value and figure.spread for figure in result.summary if "median" not in figure.figure)
    runs = cast(list[dict[str, Any]], result.samples["runs"])
    assert [(r["batch"], r["completed"], r["total_output_tokens"]) for r in runs] == [
        *([(1, 2, 6)] * 2),
        *([(4, 8, 24)] * 2),
    ]
    with pytest.raises(RuntimeError, match="batch 1: an answer failed: the answer ended by 'error'"):
        run(client(Engine(fails="0")), batches, range(100), {}, lambda: None)
