"""The ASGI app: OpenAI's routes over one engine."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import JSONResponse, Response

from smoe.core.client import EngineClient
from smoe.core.errors import RequestError
from smoe.server import complaints, documents, errors, metrics
from smoe.server.answering import Job, respond
from smoe.server.async_engine import AsyncEngine
from smoe.server.config import ServerConfig
from smoe.server.errors import ApiError
from smoe.server.guard import Guard
from smoe.server.health import health
from smoe.server.replies import ChatReply, CompletionReply
from smoe.server.schemas import ChatBody, CompletionBody, DetokenizeBody, Sampling, TokenizeBody
from smoe.server.token_text import TokenTexts


def make_app(open_client: Callable[[], EngineClient], model: str, config: ServerConfig) -> FastAPI:
    """`model` is the name under which the engine's model is served. The engine loads while the app already answers:
    until then with 503. Ending the app's lifespan drains it."""
    engine = AsyncEngine(open_client, max_queue=config.max_queue, drain_s=config.drain_s)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        engine.start()
        try:
            yield
        finally:
            await engine.close()

    app = FastAPI(title="smoe", version="1", lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.engine = engine
    errors.install(app)
    complaints.install(app)
    app.add_middleware(Guard, config=config)
    metrics.install(app, engine, model, config)
    _Routes(app, engine, model, config)
    if config.api_key is not None:
        documents.require_key(app)
    return app


class _Routes:
    def __init__(self, app: FastAPI, engine: AsyncEngine, model: str, config: ServerConfig) -> None:
        self._engine, self._model, self._config = engine, model, config
        self._texts = TokenTexts()
        self._created = int(time.time())
        app.post("/v1/completions", responses=documents.COMPLETIONS)(self.completions)
        app.post("/v1/chat/completions", responses=documents.CHAT)(self.chat)
        app.get("/v1/models", responses=documents.MODELS)(self.models)
        app.get("/v1/models/{name:path}", responses=documents.ONE_MODEL)(self.one_model)
        app.post("/tokenize", responses=documents.TOKENIZE)(self.tokenize)
        app.post("/detokenize", responses=documents.DETOKENIZE)(self.detokenize)
        app.get("/health", responses=documents.HEALTH)(self.health)

    async def completions(self, body: CompletionBody, http: Request) -> Response:
        self._check_model(body.model)
        client, items, prefixes, prompt_tokens = self._engine.client, [], [], 0
        for prompt in body.prompts:
            ids, text = await self._encode(client, prompt, wants_text=body.echo)
            prompt_tokens += len(ids)
            items += [(ids, params) for params in body.params(body.max_tokens, body.logprobs)]
            prefixes += [text] * body.n
        reply = CompletionReply(self._model, client.info().lossy, self._texts, body.return_token_ids)
        job = self._job(body, items, prefixes, prompt_tokens, reply)
        return await respond(self._engine, self._texts, http, job)

    async def chat(self, body: ChatBody, http: Request) -> Response:
        self._check_model(body.model)
        client = self._engine.client
        ids = await asyncio.to_thread(client.encode_chat, [message.plain() for message in body.messages])
        items = [(ids, params) for params in body.params(body.limit, body.num_logprobs)]
        reply = ChatReply(self._model, client.info().lossy, self._texts, body.return_token_ids)
        job = self._job(body, items, [""] * body.n, len(ids), reply)
        return await respond(self._engine, self._texts, http, job)

    async def models(self) -> dict[str, Any]:
        return {"object": "list", "data": [self._card()]}

    async def one_model(self, name: str) -> dict[str, Any]:
        self._check_model(name)
        return self._card()

    async def tokenize(self, body: TokenizeBody) -> dict[str, Any]:
        self._check_model(body.model)
        client = self._engine.client
        if body.messages is not None:
            ids = await asyncio.to_thread(client.encode_chat, [message.plain() for message in body.messages])
        else:
            ids = await asyncio.to_thread(client.encode_text, body.prompt or "")
        return {"tokens": ids, "count": len(ids), "max_model_len": client.info().max_model_len}

    async def detokenize(self, body: DetokenizeBody) -> dict[str, Any]:
        self._check_model(body.model)
        client = self._engine.client
        size = client.info().vocab_size
        if wrong := [token for token in body.tokens if token >= size]:
            raise RequestError("tokens", wrong[0], f"token ids, 0 to {size - 1}")
        text = await asyncio.to_thread(client.decode_text, body.tokens)
        if text is None:
            raise RequestError("tokens", f"{len(body.tokens)} ids", "this model folder has no tokenizer")
        return {"prompt": text}

    async def health(self) -> JSONResponse:
        """Whether requests are taken; `degraded` while lost devices are replaced."""
        return health(self._engine)

    def _card(self) -> dict[str, Any]:
        card: dict[str, Any] = {"id": self._model, "object": "model", "created": self._created, "owned_by": "smoe"}
        return {**card, "max_model_len": self._engine.client.info().max_model_len}

    def _check_model(self, name: str | None) -> None:
        if name is not None and name != self._model:
            raise ApiError(404, f"model: {name!r} (here is {self._model!r})", param="model", code="model_not_found")

    async def _encode(
        self, client: EngineClient, prompt: str | list[int], *, wants_text: bool
    ) -> tuple[Sequence[int], str]:
        if isinstance(prompt, str):
            return await asyncio.to_thread(client.encode_text, prompt), prompt if wants_text else ""
        text = await asyncio.to_thread(client.decode_text, prompt) if wants_text else ""
        return prompt, text or ""

    def _job(
        self,
        body: Sampling,
        items: Sequence[tuple[Sequence[int], Any]],
        prefixes: Sequence[str],
        prompt_tokens: int,
        reply: CompletionReply | ChatReply,
    ) -> Job:
        return Job(
            items=items,
            prefixes=prefixes,
            prompt_tokens=prompt_tokens,
            reply=reply,
            stream=body.stream,
            include_usage=body.stream_options is not None and body.stream_options.include_usage,
            timeout_s=self._config.request_timeout_s,
        )
