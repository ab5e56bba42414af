"""What a chat sends as the prompt of the next turn."""

from collections.abc import Sequence
from typing import Protocol

from smoe.core.client import EngineClient


class Conversation(Protocol):
    about: str

    def prompt(self, said: str) -> Sequence[int]:
        """Token ids of everything so far and `said`; changes nothing, so a refused turn is as if never said."""
        ...

    def take(self, said: str, answer: str) -> None: ...

    def reset(self) -> None: ...


class Messages:
    """Turns under the model's chat template."""

    about = "chat"

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._messages: list[dict[str, str]] = []

    def prompt(self, said: str) -> Sequence[int]:
        return self._client.encode_chat([*self._messages, {"role": "user", "content": said}])

    def take(self, said: str, answer: str) -> None:
        self._messages += [{"role": "user", "content": said}, {"role": "assistant", "content": answer}]

    def reset(self) -> None:
        self._messages = []


class Continuation:
    """For a model that was never taught to chat: each line is appended to one text, which the model continues."""

    about = "this model has no chat template: it continues the text that you write"

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._text = ""

    def prompt(self, said: str) -> Sequence[int]:
        return self._client.encode_text(self._text + said)

    def take(self, said: str, answer: str) -> None:
        self._text += f"{said}{answer}\n"

    def reset(self) -> None:
        self._text = ""
