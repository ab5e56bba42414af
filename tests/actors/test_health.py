"""Polls of processes that may fall silent."""

from smoe.actors.health import HealthPolls


class Asked:
    """Questions by name, and which of them have been answered."""

    def __init__(self, *names: str) -> None:
        self.questions: dict[str, int] = dict.fromkeys(names, 0)
        self.answered: set[tuple[str, int]] = set()
        self.polls = HealthPolls(
            {name: lambda name=name: self._ask(name) for name in names},  # type: ignore[misc]
            self.answered.__contains__,
            every_s=5.0,
            limit_s=20.0,
        )

    def _ask(self, name: str) -> tuple[str, int]:
        self.questions[name] += 1
        return name, self.questions[name]

    def answer(self, name: str) -> None:
        self.answered.add((name, self.questions[name]))


def test_each_is_asked_at_once_and_then_every_so_often() -> None:
    asked = Asked("a", "b")
    for now, count in ((0.0, 1), (0.5, 1), (4.9, 1), (5.0, 2), (9.9, 2), (10.0, 3)):
        assert asked.polls.silent(now) is None
        assert asked.questions == {"a": count, "b": count}
        asked.answer("a")
        asked.answer("b")


def test_silence_past_the_limit_is_told_by_name() -> None:
    asked = Asked("a", "b")
    for now in range(0, 21, 5):
        assert asked.polls.silent(float(now)) is None
        asked.answer("a")
    assert asked.questions["b"] == 1, "one question at a time"
    assert asked.polls.silent(20.1) == "b"


def test_a_late_answer_is_an_answer() -> None:
    asked = Asked("a")
    assert asked.polls.silent(0.0) is None
    assert asked.polls.silent(19.0) is None
    asked.answer("a")
    assert asked.polls.silent(30.0) is None
    assert asked.questions["a"] == 2
    assert asked.polls.silent(50.1) == "a"
