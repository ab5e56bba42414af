"""/metrics: one server's counts, read when they are asked for."""

import asyncio
import logging
import time
import uuid
from collections import Counter
from collections.abc import Iterator

from fastapi import FastAPI
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from smoe.core.errors import SmoeError
from smoe.core.stats import EngineStats
from smoe.metrics.prometheus import ServerState, families
from smoe.server import documents
from smoe.server.async_engine import AsyncEngine
from smoe.server.config import ServerConfig
from smoe.server.health import phase_of

log = logging.getLogger(__name__)
PATH = "/metrics"
# An engine answers between two steps, and one whose devices hang only when they have been given up.
_STATS_S = 2.0


def install(app: FastAPI, engine: AsyncEngine, model: str, config: ServerConfig) -> None:
    """The routes, and a count of every response, so it comes after all other middleware."""
    replica = uuid.uuid4().hex[:8] if config.replicas > 1 else None
    metrics = ServerMetrics(engine, model, replica)
    app.add_middleware(CountStatus, statuses=metrics.statuses)
    app.get(PATH, response_class=_Text, responses=documents.METRICS)(metrics.get)
    if config.metrics_reset:
        app.delete(PATH, status_code=204, responses=documents.METRICS)(metrics.reset)


class _Text(Response):
    media_type = "text/plain"


class ServerMetrics(Collector):
    """A collector of its own registry: what the process at large registers elsewhere is not served."""

    def __init__(self, engine: AsyncEngine, model: str, replica: str | None = None) -> None:
        self.statuses: Counter[int] = Counter()
        self._engine, self._model, self._replica = engine, model, replica
        self._since_s = time.time()
        self._stats: EngineStats | None = None
        self._before: EngineStats | None = None
        self._asking: asyncio.Future[EngineStats] | None = None
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    async def get(self) -> Response:
        """Counts and levels of this server in Prometheus' text format. An engine that does not answer for a while is
        shown as it was last."""
        await self._ask()
        return _Text(generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def reset(self) -> Response:
        """All counts begin at zero again; levels stay. To whoever else reads them it looks like a restart."""
        await self._ask()
        self._before, self._since_s = self._stats, time.time()
        self._engine.meter.reset()
        self.statuses.clear()
        return Response(status_code=204)

    def collect(self) -> Iterator[Metric]:
        phase, _ = phase_of(self._engine)
        stats, layers = self._stats, self._engine.moe_layers
        if stats is not None and self._before is not None:
            stats = stats.since(self._before)
        yield from families(
            ServerState(
                model=self._model,
                phase=phase,
                since_s=self._since_s,
                responses=self.statuses,
                requests=self._engine.meter,
                engine=stats,
                moe_layers=layers,
                replica=self._replica,
            )
        )

    async def _ask(self) -> None:
        """One question to the engine at a time: those who ask meanwhile get its answer, and no thread of theirs."""
        if self._asking is None:
            self._asking = asyncio.ensure_future(self._engine.stats())
        await asyncio.wait({self._asking}, timeout=_STATS_S)
        if self._asking is not None and self._asking.done():
            asked, self._asking = self._asking, None
            try:
                self._stats = asked.result()
            except (SmoeError, RuntimeError) as error:
                if self._engine.phase == "running":  # else there is no engine, as the phase says
                    log.warning("the engine does not say what it counts: %s", error)


class CountStatus:
    """Plain ASGI, so that streams stay as they are."""

    def __init__(self, app: ASGIApp, statuses: Counter[int]) -> None:
        self._app, self._statuses = app, statuses

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._statuses[message["status"]] += 1
            await send(message)

        await self._app(scope, receive, counted)
