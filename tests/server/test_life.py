"""What becomes of requests when clients leave, the server drains or the engine fails; steps run when tests let them."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from smoe.core.client import EngineClient
from smoe.core.step import SampledToken
from smoe.server.app import make_app
from smoe.server.async_engine import AsyncEngine
from smoe.server.config import ServerConfig
from tests.actors import fakes
from tests.actors.fakes import FakeExecutor
from tests.server.asgi import Call
from tests.server.scripted import ScriptedExecutor, client_of

BODY: dict[str, Any] = {"model": "m", "prompt": [1, 2, 3], "max_tokens": 20, "return_token_ids": True}
STREAM = {**BODY, "stream": True}


@asynccontextmanager
async def served(executor: FakeExecutor, **config: Any) -> AsyncIterator[tuple[Any, AsyncEngine]]:
    app = make_app(lambda: client_of(executor), "m", ServerConfig(**config))
    engine: AsyncEngine = app.state.engine
    running = asyncio.Event()
    engine.on_phase = running.set
    async with app.router.lifespan_context(app):
        await running.wait()
        yield app, engine


def run(body: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(body(), 120))  # type: ignore[arg-type]


async def until(there: Callable[[], bool]) -> None:
    """For what happens on the engine's thread."""
    while not there():
        await asyncio.sleep(0.001)


async def until_free(engine: AsyncEngine) -> None:
    while (await engine.stats()).kv_rows_used:
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("stream", [True, False])
def test_who_leaves_costs_no_further_step(stream: bool) -> None:
    executor = ScriptedExecutor(gated=True)

    async def body() -> None:
        async with served(executor) as (app, engine):
            call = Call(app, {**BODY, "stream": stream, "n": 2})
            executor.allow(3)
            await until(lambda: executor.steps == 3)
            call.leave()
            await call.ended
            assert engine.num_in_flight == 0
            executor.allow(1)  # the step that was under way
            await until_free(engine)
            stats = await engine.stats()
            assert (stats.running, stats.waiting, executor.steps) == (0, 0, 4)

    run(body)


def test_who_leaves_while_the_engine_takes_the_request_leaves_nothing_behind() -> None:
    executor, taken = ScriptedExecutor(gated=True), threading.Event()

    async def body() -> None:
        async with served(executor) as (app, engine):
            submit = engine.client.submit
            engine.client.submit = lambda requests: (taken.wait(), submit(requests))[1]  # type: ignore[method-assign]
            call = Call(app, BODY)
            await until(lambda: engine.num_in_flight == 1)
            call.ended.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call.ended
            taken.set()
            await until(lambda: engine.num_in_flight == 0)
            executor.allow(20)
            await until_free(engine)
            assert executor.steps <= 1, "of its twenty"

    run(body)


def test_a_drain_ends_what_is_in_flight_and_tells_the_others() -> None:
    executor = ScriptedExecutor(gated=True)

    async def body() -> None:
        async with served(executor) as (app, engine):
            streamed, whole = Call(app, STREAM), Call(app, BODY)
            executor.allow(2)
            await streamed.until_event(1)
            closing = asyncio.ensure_future(engine.close())
            await until(lambda: engine.phase == "draining")
            refused = Call(app, BODY)
            await refused.ended
            assert (refused.status, refused.headers["retry-after"]) == (503, "1")
            assert refused.json["error"]["code"] == "draining"
            executor.allow(100)
            await asyncio.gather(streamed.ended, whole.ended, closing)
            expected = fakes.expected_tokens([1, 2, 3], 20)
            assert [token for event in streamed.events for token in event["choices"][0]["token_ids"]] == expected
            assert whole.json["choices"][0]["token_ids"] == expected
            late = Call(app, BODY)
            await late.ended
            assert (late.status, late.json["error"]["code"]) == (503, "model_closed")

    run(body)


def test_a_drain_has_an_end() -> None:
    executor = ScriptedExecutor(gated=True)

    async def body() -> None:
        async with served(executor, drain_s=0.01) as (app, engine):
            streamed, waiting = Call(app, STREAM), Call(app, STREAM)
            executor.allow(1)
            await streamed.until_event(1)
            closing = asyncio.ensure_future(engine.close())
            await asyncio.gather(streamed.ended, waiting.ended)
            assert streamed.events[-1]["error"]["code"] == "aborted"
            executor.allow(100)
            await closing
            assert executor.steps <= 3

    run(body)


def test_a_failed_engine_ends_its_answers_with_503_and_is_said() -> None:
    executor = ScriptedExecutor(gated=True, die_after=3)

    async def body() -> None:
        async with served(executor) as (app, engine):
            streamed, whole = Call(app, STREAM), Call(app, BODY)
            await until(lambda: engine.num_in_flight == 2)
            said = asyncio.Event()
            engine.on_phase = said.set
            executor.allow(3)
            await asyncio.gather(streamed.ended, whole.ended, said.wait())
            assert streamed.status == 200
            assert streamed.events[-1]["error"]["code"] == "engine_failed"
            assert (whole.status, whole.headers["retry-after"]) == (503, "1")
            assert "fell off the bus" in whole.json["error"]["message"]
            assert (engine.phase, engine.num_in_flight) == ("failed", 0)

    run(body)


def test_one_bad_request_ends_alone() -> None:
    def script(prompt: Any, index: int) -> SampledToken:
        if prompt[0] == 9 and index == 5:
            return SampledToken(None, error="numeric: logits are not finite")
        return SampledToken((prompt[0] + index) % fakes.VOCAB)

    async def body() -> None:
        async with served(ScriptedExecutor(script)) as (app, engine):
            calls = [Call(app, {**BODY, "prompt": [i, 2]}) for i in (1, 9, 3)]
            streamed = Call(app, {**STREAM, "prompt": [9, 2]})
            await asyncio.gather(streamed.ended, *(call.ended for call in calls))
            assert [call.status for call in calls] == [200, 500, 200]
            assert calls[1].json["error"]["code"] == "numeric_error"
            for call, first in ((calls[0], 1), (calls[2], 3)):
                assert call.json["choices"][0]["token_ids"] == list(range(first, first + 20))
            assert [e["choices"][0]["token_ids"] for e in streamed.events[:-1]] == [[9], [10], [11], [12], [13]]
            assert streamed.events[-1]["error"]["code"] == "numeric_error"
            await until_free(engine)

    run(body)


def test_a_stream_that_gets_no_first_token_in_time_has_a_status() -> None:
    executor = ScriptedExecutor(gated=True)

    async def body() -> None:
        async with served(executor, request_timeout_s=0.01) as (app, engine):
            call = Call(app, STREAM)
            await call.ended
            assert (call.status, call.json["error"]["code"]) == (503, "request_timeout")
            assert engine.num_in_flight == 0
            executor.allow(5)

    run(body)


def test_a_load_under_way_holds_nobody_up_who_wants_to_end() -> None:
    asked = threading.Event()

    def never() -> EngineClient:
        asked.set()
        threading.Event().wait()
        raise AssertionError

    async def body() -> None:
        AsyncEngine(never, max_queue=1, drain_s=1.0).start()
        await until(asked.is_set)

    run(body)
