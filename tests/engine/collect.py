"""Run an engine to its end and put the deltas together."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from smoe.core.request import Delta, Request, TokenLogprob
from smoe.core.sampling import SamplingParams
from smoe.engine.core import EngineCore


@dataclass
class Outcome:
    text: str = ""
    pieces: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    last: Delta | None = None

    @property
    def reason(self) -> str | None:
        return None if self.last is None else self.last.finish_reason


def merge(deltas: Sequence[Delta]) -> dict[str, Outcome]:
    outcomes: dict[str, Outcome] = defaultdict(Outcome)
    for delta in deltas:
        outcome = outcomes[delta.request_id]
        assert outcome.last is None, "a delta after the last one"
        outcome.text += delta.text
        outcome.pieces.append(delta.text)
        outcome.token_ids += delta.token_ids
        outcome.logprobs += delta.logprobs
        outcome.last = delta if delta.finish_reason is not None else None
    return dict(outcomes)


def drain(core: EngineCore) -> dict[str, Outcome]:
    deltas: list[Delta] = []
    while core.has_work:
        deltas += core.step()
    core.check_integrity()
    return merge(deltas)


def request(request_id: str, prompt: Sequence[int], **params: object) -> Request:
    return Request(
        request_id=request_id,
        prompt_token_ids=tuple(prompt),
        params=SamplingParams(**params),  # type: ignore[arg-type]
    )


def run_alone(core: EngineCore, prompt: Sequence[int], **params: object) -> Outcome:
    core.add([request("alone", prompt, **params)])
    return drain(core)["alone"]
