"""Many clients at once, some of which leave in the middle or send nonsense; what became of every request is kept."""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import aiohttp

REFUSALS = (429, 503)
BAD: list[tuple[int, bytes]] = [
    (400, b"{"),
    (400, b'{"model": "MODEL", "prompt": [100000000]}'),
    (404, b'{"model": "another", "prompt": "a"}'),
    (422, b'{"model": "MODEL"}'),
    (422, b'{"model": "MODEL", "prompt": "a", "max_tokens": -1}'),
    (422, b'{"model": "MODEL", "prompt": "a", "what": 1}'),
]


@dataclass
class Tally:
    """`wrong` are outcomes that no client should see."""

    seen: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        return sum(self.seen.values())


class Storm:
    """`go_on` is asked before each request whether one more is to be sent."""

    def __init__(self, url: str, model: str, *, clients: int, seed: int, go_on: Callable[[int], bool]) -> None:
        self._url, self._model, self._clients, self._go_on = f"{url}/v1/completions", model, clients, go_on
        self._chance = random.Random(seed)
        self.tally = Tally()
        self._sent = 0

    async def blow(self) -> Tally:
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=300)
        async with aiohttp.ClientSession(
            connector=connector, timeout=timeout, headers={"content-type": "application/json"}
        ) as session:
            await asyncio.gather(*(self._client(session) for _ in range(self._clients)))
        return self.tally

    async def _client(self, session: aiohttp.ClientSession) -> None:
        acts: list[Callable[[aiohttp.ClientSession], Coroutine[Any, Any, str]]] = [
            self._stream,
            self._stream,
            self._stream,
            self._whole,
            self._leave_stream,
            self._leave_whole,
            self._bad,
        ]
        begun = time.monotonic()
        while self._go_on(self._sent):
            self._sent += 1
            act = self._chance.choice(acts)
            try:
                self.tally.seen[await act(session)] += 1
            except (aiohttp.ClientError, TimeoutError, ValueError, KeyError, AssertionError) as error:
                self.tally.seen["wrong"] += 1
                after = time.monotonic() - begun
                self.tally.wrong.append(f"{after:.0f} s: {act.__name__}: {type(error).__name__}: {error}"[:300])

    def _body(self, tokens: int, stream: bool) -> bytes:
        words = " ".join(str(self._chance.randint(0, 99)) for _ in range(self._chance.randint(1, 40)))
        body = {
            "model": self._model,
            "prompt": words,
            "max_tokens": tokens,
            "stream": stream,
            "ignore_eos": True,
            "seed": self._chance.randint(0, 2**31),
            "return_token_ids": True,
        }
        return json.dumps(body).encode()

    async def _stream(self, session: aiohttp.ClientSession) -> str:
        tokens, ids, ended = self._chance.randint(1, 48), 0, False
        async with session.post(self._url, data=self._body(tokens, True)) as answer:
            if answer.status in REFUSALS:
                return _refused(answer)
            assert answer.status == 200, await answer.text()
            async for line in answer.content:
                if line.startswith(b"data: {"):
                    event = json.loads(line[6:])
                    assert "error" not in event, event
                    ids += len(event["choices"][0]["token_ids"])
                ended |= line.startswith(b"data: [DONE]")
        assert ended, "the stream has no end"
        assert ids == tokens, f"{ids} of {tokens} tokens"
        return "streamed"

    async def _whole(self, session: aiohttp.ClientSession) -> str:
        tokens = self._chance.randint(1, 48)
        async with session.post(self._url, data=self._body(tokens, False)) as answer:
            if answer.status in REFUSALS:
                return _refused(answer)
            assert answer.status == 200, await answer.text()
            body = await answer.json()
        assert body["usage"]["completion_tokens"] == len(body["choices"][0]["token_ids"]) == tokens
        return "whole"

    async def _leave_stream(self, session: aiohttp.ClientSession) -> str:
        leave_after = self._chance.randint(0, 10)
        async with session.post(self._url, data=self._body(200, True)) as answer:
            if answer.status in REFUSALS:
                return _refused(answer)
            async for line in answer.content:
                leave_after -= line.startswith(b"data: {")
                if leave_after < 0:
                    break
            answer.close()
        return "left a stream"

    async def _leave_whole(self, session: aiohttp.ClientSession) -> str:
        post = asyncio.ensure_future(self._post(session, self._body(200, False)))
        done, _ = await asyncio.wait({post}, timeout=self._chance.uniform(0.0, 0.2))
        if done:
            return "refused" if post.result() in REFUSALS else "whole"
        post.cancel()
        return "left"

    async def _post(self, session: aiohttp.ClientSession, body: bytes) -> int:
        async with session.post(self._url, data=body) as answer:
            await answer.read()
            return answer.status

    async def _bad(self, session: aiohttp.ClientSession) -> str:
        status, body = self._chance.choice(BAD)
        async with session.post(self._url, data=body.replace(b"MODEL", self._model.encode())) as answer:
            error = (await answer.json())["error"]
        if answer.status in REFUSALS:
            return _refused(answer)
        assert answer.status == status, f"{body!r}: {answer.status} {error}"
        assert error["message"]
        return f"bad {status}"


def _refused(answer: aiohttp.ClientResponse) -> str:
    assert answer.headers["Retry-After"], "a refusal without Retry-After"
    return "refused"
