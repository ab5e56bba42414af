"""Whether processes still answer: one that neither answers nor dies must be found, too."""

from collections.abc import Callable, Mapping
from typing import Any

Ask = Callable[[], Any]


class HealthPolls:
    """Asks each of some processes every `every_s`, one question at a time; silence of `limit_s` is its end.

    `asks` send a question and return a token for its answer; `answered` says without waiting whether that is there
    (the process's death counts as an answer: others report it). Times are the caller's, in seconds.
    """

    def __init__(self, asks: Mapping[str, Ask], answered: Callable[[Any], bool], every_s: float, limit_s: float):
        self._asks = dict(asks)
        self._answered = answered
        self._every_s, self._limit_s = every_s, limit_s
        self._asked: dict[str, tuple[float, Any | None]] = {}

    def silent(self, now_s: float) -> str | None:
        """Asks whom it is time to ask; the name of one that has been silent too long."""
        for name, ask in self._asks.items():
            asked_s, question = self._asked.get(name, (float("-inf"), None))
            if question is not None and not self._answered(question):
                if now_s - asked_s > self._limit_s:
                    return name
            elif now_s - asked_s >= self._every_s:
                self._asked[name] = (now_s, ask())
            else:
                self._asked[name] = (asked_s, None)
        return None
