"""Every status that the server answers with, over a live socket: the same for each deployment."""

import http.client
import json
from typing import Any

KEY, MAX_BODY_BYTES, MAX_QUEUE = "secret", 8000, 8
"""What the server has to be started with."""
_PROMPT: dict[str, Any] = {"prompt": [1, 2, 3], "max_tokens": 2, "temperature": 0}


class Caller:
    """One connection; bodies are JSON unless they are bytes."""

    def __init__(self, port: int, model: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self.model = model

    def __call__(
        self, method: str, path: str, body: Any = None, *, key: str | None = KEY, **headers: str
    ) -> tuple[int, dict[str, str], Any]:
        """(status, headers, body as JSON)."""
        sent = {"content-type": "application/json", **headers}
        if key is not None:
            sent["authorization"] = f"Bearer {key}"
        raw = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        self._connection.request(method, path, raw, sent)
        answer = self._connection.getresponse()
        found = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, found, json.loads(answer.read())

    def complete(self, **changes: Any) -> tuple[int, dict[str, str], Any]:
        return self("POST", "/v1/completions", {"model": self.model, **_PROMPT, **changes})


def check_statuses(call: Caller) -> None:
    before = call.complete()
    assert before[0] == 200, before
    path = "/v1/completions"
    fine = {"model": call.model, **_PROMPT}
    answers = {
        (400, "invalid_json"): call("POST", path, b"{"),
        (400, "invalid_value"): call.complete(prompt=[10**6]),
        (401, "invalid_api_key"): call("POST", path, fine, key="wrong"),
        (404, "model_not_found"): call.complete(model="other"),
        (404, "not_found"): call("GET", "/nowhere"),
        (405, "method_not_allowed"): call("GET", path),
        (415, "unsupported_media_type"): call("POST", path, b"a=b", **{"content-type": "text/plain"}),
        (422, "extra_forbidden"): call.complete(unknown=1),
        (422, "greater_than_equal"): call.complete(n=0),
        (429, "queue_full"): call.complete(n=MAX_QUEUE + 1),
        (413, "body_too_large"): call("POST", path, b" " * (MAX_BODY_BYTES + 1)),
    }
    for (status, code), (found, headers, body) in answers.items():
        assert (found, body["error"]["code"]) == (status, code)
        assert set(body["error"]) == {"message", "type", "param", "code"}
        assert body["error"]["message"]
        assert headers["content-type"] == "application/json"
        assert ("retry-after" in headers) == (status == 429)
    assert call.complete()[2]["choices"] == before[2]["choices"], "none of it harmed anything"
    assert call("GET", "/health", key=None)[2] == {"status": "ok", "in_flight": 0}
