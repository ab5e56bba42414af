import pytest
from hypothesis import given
from hypothesis import strategies as st

from smoe.engine.stops import StopMatcher


def run(stops: tuple[str, ...], pieces: list[str]) -> tuple[list[str], str | None]:
    matcher = StopMatcher(stops)
    shown: list[str] = []
    for piece in pieces:
        text, matched = matcher.push(piece)
        shown.append(text)
        if matched is not None:
            return shown, matched
    return [*shown, matcher.flush()], None


@pytest.mark.parametrize("cut", range(1, 9))
def test_a_stop_string_split_at_every_boundary(cut: int) -> None:
    text = "ab<end>cd"
    shown, matched = run(("<end>",), [text[:cut], text[cut:]])
    assert matched == "<end>"
    assert "".join(shown) == "ab"


def test_the_start_of_a_stop_string_is_held_back_and_comes_when_it_turns_out_otherwise() -> None:
    assert run(("<end>",), list("a<en<end")) == (["a", "", "", "", "<en", "", "", "", "<end"], None)


def test_overlapping_starts() -> None:
    shown, matched = run(("aab",), list("aaaab"))
    assert ("".join(shown), matched) == ("aa", "aab")


def test_first_to_complete_wins_and_the_longer_of_two_that_complete_together() -> None:
    assert run(("abcd", "bc"), ["abcd"]) == (["a"], "bc")
    assert run(("c", "abc"), ["xabcx"]) == (["x"], "abc")


def test_no_stops_no_delay() -> None:
    assert run((), ["a", "<"]) == (["a", "<", ""], None)


_STOPS = st.lists(st.text("ab<", min_size=1, max_size=4), min_size=1, max_size=3).map(tuple)


@given(_STOPS, st.lists(st.text("ab<", max_size=4), max_size=12))
def test_any_cut_gives_the_same_text_and_no_start_of_a_stop_string_leaks(
    stops: tuple[str, ...], pieces: list[str]
) -> None:
    whole = "".join(pieces)
    shown, matched = run(stops, pieces)
    ends = [(end, -len(s), s) for s in stops for end in range(len(whole) + 1) if whole[:end].endswith(s)]
    if ends:
        end, _, first = min(ends)
        assert ("".join(shown), matched) == (whole[: end - len(first)], first)
    else:
        assert ("".join(shown), matched) == (whole, None)
        for count in range(1, len(pieces) + 1):
            so_far, streamed = "".join(pieces[:count]), "".join(shown[:count])
            assert not any(s.startswith(so_far[at:]) for s in stops for at in range(len(streamed)))
