"""What makes a request impossible, found before it is queued."""

from collections.abc import Container, Sequence

from smoe.core.errors import RequestError
from smoe.core.model_info import ModelInfo
from smoe.core.request import Request


class RequestValidator:
    """Checks requests against one model, an arena of `kv_rows` rows and whether text can be made."""

    def __init__(self, info: ModelInfo, kv_rows: int, *, has_tokenizer: bool) -> None:
        self._info, self._kv_rows, self._has_tokenizer = info, kv_rows, has_tokenizer

    def check(self, requests: Sequence[Request], in_flight: Container[str]) -> list[int]:
        """The number of tokens that each may generate: `max_tokens`, bounded by context and arena.

        Raises RequestError at the first request that can never run.
        """
        seen: set[str] = set()
        limits: list[int] = []
        for request in requests:
            if request.request_id in seen or request.request_id in in_flight:
                raise RequestError("request_id", request.request_id, "unique among requests in flight")
            seen.add(request.request_id)
            limits.append(self._max_tokens(request))
        return limits

    def _max_tokens(self, request: Request) -> int:
        prompt, params = request.prompt_token_ids, request.params
        if not prompt:
            raise RequestError("prompt_token_ids", prompt, "at least one token")
        for position, token_id in enumerate(prompt):
            if not isinstance(token_id, int) or not 0 <= token_id < self._info.vocab_size:
                limit = f"integer, 0 to {self._info.vocab_size - 1}, at position {position}"
                raise RequestError("prompt_token_ids", token_id, limit)
        context = self._info.max_model_len
        if len(prompt) >= context:
            limit = f"below the context length of {context} tokens, so that one can be generated"
            raise RequestError("prompt length", len(prompt), limit)
        if params.stop and not self._has_tokenizer:
            raise RequestError("stop", params.stop, "needs a tokenizer, which this model folder lacks")
        wanted = context - len(prompt) if params.max_tokens is None else params.max_tokens
        max_tokens = min(wanted, context - len(prompt))
        room = self._kv_rows - len(prompt)
        if room < 1 or (params.max_tokens is not None and max_tokens > room):
            limit = f"at most the {self._kv_rows} rows of KV memory; lower max_tokens or free memory"
            raise RequestError("prompt length + max_tokens", len(prompt) + max_tokens, limit)
        return min(max_tokens, room)
