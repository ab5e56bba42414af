"""The pieces in which the answers to one HTTP request come, from the deltas of its engine."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from smoe.core.request import Delta
from smoe.core.sampling import SamplingParams
from smoe.server.async_engine import Answers, AsyncEngine
from smoe.server.errors import ApiError
from smoe.server.health import phase_of
from smoe.server.replies import Piece
from smoe.server.token_text import TokenTexts

Item = tuple[Sequence[int], SamplingParams]
_FAULTS = ("error", "numeric_error", "abort")


@dataclass(slots=True)
class _Answer:
    """`head` is what echo puts before it, None once told; `offset` characters are told, `held` deltas are not."""

    index: int
    item: Item
    head: str | None
    offset: int = 0
    held: list[Delta] = field(default_factory=list)

    def told(self, delta: Delta) -> Piece | None:
        """What may be shown by now, if anything."""
        self.held.append(delta)
        if delta.held_back:
            return None
        parts, self.held = self.held, []
        prompt, params = self.item
        head, first = self.head or "", self.head is not None
        text = head + "".join([part.text for part in parts])
        piece = Piece(
            index=self.index,
            text=text,
            token_ids=[token for part in parts for token in part.token_ids],
            logprobs=None if params.logprobs is None else [entry for part in parts for entry in part.logprobs],
            finish_reason=delta.finish_reason,
            stop_reason=delta.stop_reason,
            offset=self.offset + len(head),
            prompt_token_ids=prompt if first else None,
            substituted_slots=delta.substituted_slots,
            substituted_mass=delta.substituted_mass,
        )
        self.head = None
        self.offset += len(text)
        return piece


class Pieces:
    """Iterates until all answers have ended. Text and tokens of each piece are of one another: what is held back of a
    token holds back the rest of it too.

    Raises ApiError for an answer that ended before its time, and when there is no end within `timeout_s`.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        texts: TokenTexts,
        answers: Answers,
        items: Sequence[Item],
        heads: Sequence[str],
        timeout_s: float,
    ) -> None:
        self._engine, self._texts, self._come, self._timeout_s = engine, texts, answers, timeout_s
        self._answers = [_Answer(i, item, head) for i, (item, head) in enumerate(zip(items, heads, strict=True))]
        self._left = len(items)
        self._ready: deque[Piece | ApiError] = deque()
        answers.expire_after(timeout_s)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Piece:
        while not self._ready:
            if not self._left:
                raise StopAsyncIteration
            for delta in await self._come.take():
                self._take(delta)
        piece = self._ready.popleft()
        if isinstance(piece, ApiError):
            raise piece
        if piece.logprobs:
            await self._texts.learn(self._engine.client, piece.logprobs)
        return piece

    def _take(self, delta: Delta | None) -> None:
        if delta is None:
            if self._left:
                why = f"no end within {self._timeout_s:g} s"
                self._ready.append(ApiError(503, why, code="request_timeout", retry_after_s=1))
            return
        self._left -= delta.finish_reason is not None
        if delta.finish_reason in _FAULTS:
            self._ready.append(self._fault(delta))
        elif (piece := self._answers[self._come.index[delta.request_id]].told(delta)) is not None:
            self._ready.append(piece)

    def _fault(self, delta: Delta) -> ApiError:
        """503 where another try may do better, 500 where it is the answer's own."""
        reason, why = delta.finish_reason, delta.error or f"the answer ended by {delta.finish_reason}"
        if reason == "abort":
            return ApiError(503, why, code="aborted", retry_after_s=1)
        if phase_of(self._engine)[0] == "failed":
            return ApiError(503, why, code="engine_failed", retry_after_s=1)
        return ApiError(500, why, code="numeric_error" if reason == "numeric_error" else "server_error")
