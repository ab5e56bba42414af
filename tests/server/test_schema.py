"""Requests made from our own OpenAPI document, right ones and wrong ones: what it promises is what is answered."""

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode, checks

from smoe.server.app import make_app
from smoe.server.config import ServerConfig
from tests.server.conftest import KEY, Live

MOST_TOKENS, MOST_ANSWERS = 3, 3


def operations() -> dict[str, Any]:
    def never() -> Any:
        raise AssertionError("no model is loaded for a document")

    app = make_app(never, "m", ServerConfig(api_key=KEY))
    found = schemathesis.openapi.from_dict(app.openapi()).get_all_operations()
    return {operation.ok().label: operation.ok() for operation in found}


OPERATIONS = operations()


CASES = [(label, GenerationMode.POSITIVE) for label in OPERATIONS]
CASES += [(label, GenerationMode.NEGATIVE) for label, operation in OPERATIONS.items() if operation.body]


@pytest.mark.parametrize(("label", "mode"), CASES)
def test_answers_are_as_documented(label: str, mode: GenerationMode, live: Live) -> None:
    seen: set[int] = set()

    @settings(
        max_examples=10,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=OPERATIONS[label].as_strategy(mode))
    def one(case: Any) -> None:
        if mode is GenerationMode.NEGATIVE:
            case.body = without_nulls(case.body)
        case.body = asked_for_little(case.body, live.model, is_chat="chat" in label)
        if case.path_parameters and not seen:
            case.path_parameters["name"] = live.model
        headers = {"Authorization": f"Bearer {live.key}"}
        # What a document cannot say of right ones: the context, the vocabulary, options without effect.
        answer = case.call_and_validate(
            live.url, headers=headers, timeout=60, excluded_checks=[checks.positive_data_acceptance]
        )
        seen.add(answer.status_code)

    one()
    assert min(seen) < 300 if mode is GenerationMode.POSITIVE else max(seen) >= 400


def without_nulls(body: Any) -> Any:
    """Null is as if the field were left out, which is not wrong by itself; what stands here instead is, anywhere."""
    if isinstance(body, dict):
        return {name: [[]] if value is None else without_nulls(value) for name, value in body.items()}
    return [without_nulls(value) for value in body] if isinstance(body, list) else body


def asked_for_little(body: Any, model: str, *, is_chat: bool) -> Any:
    """The model is one that is served, and an answer takes few tokens; what is wrong stays so."""
    if isinstance(body, dict):
        body = dict(body)
        if isinstance(body.get("model"), str):
            body["model"] = model
        for field, most in (("max_tokens", MOST_TOKENS), ("max_completion_tokens", MOST_TOKENS), ("n", MOST_ANSWERS)):
            if isinstance(body.get(field), int) and body[field] > most:
                body[field] = most
        if is_chat and body.get("max_tokens") is body.get("max_completion_tokens") is None:
            body["max_tokens"] = MOST_TOKENS  # else an answer is as long as the context has room for
    return body
