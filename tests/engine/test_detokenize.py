"""Text in pieces: byte-level BPE (the built-in tokenizer) and a SentencePiece-like one with byte fallback."""

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as HFBackend
from tokenizers import decoders, models
from transformers import PreTrainedTokenizerFast

from smoe.engine.detokenize import ByteDetokenizer, Detokenizer, WindowDetokenizer
from smoe.engine.token_bytes import byte_table
from smoe.engine.tokenizer import Tokenizer, load_tokenizer
from smoe.models.loading import model_folder

TEXTS = ["Hello world", "naïve café", "世界こんにちは", "🎉👩‍👩‍👧 done", "a\ufffdb", "", "  two  spaces\n\n"]
WORDS = ["▁Hello", "▁world", "lo", "▁", "世", ",", "é"]


@cache
def load_builtin() -> Tokenizer:
    tokenizer = load_tokenizer(model_folder("builtin"))
    assert tokenizer is not None
    return tokenizer


@cache
def make_pieces() -> Tokenizer:
    """Ids 0: <s>, 1: </s>, 2: <unk>, 3..258: bytes, then WORDS."""
    names = ["<s>", "</s>", "<unk>", *(f"<0x{b:02X}>" for b in range(256)), *WORDS]
    backend = HFBackend(
        models.BPE({name: i for i, name in enumerate(names)}, [], byte_fallback=True, unk_token="<unk>")
    )
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(steps)
    return Tokenizer(
        PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    )


@pytest.fixture
def builtin() -> Tokenizer:
    return load_builtin()


@pytest.fixture
def pieces() -> Tokenizer:
    return make_pieces()


def stream(detokenizer: Detokenizer, token_ids: list[int]) -> list[str]:
    return [*(detokenizer.push(token_id) for token_id in token_ids), detokenizer.flush()]


@pytest.mark.parametrize("text", TEXTS)
def test_builtin_streams_what_it_encodes(builtin: Tokenizer, text: str) -> None:
    ids = builtin.encode(text)
    shown = stream(builtin.detokenizer([5]), ids)
    assert isinstance(builtin.detokenizer([5]), ByteDetokenizer)
    assert "".join(shown) == text == builtin.decode(ids)
    if "\ufffd" not in text:
        assert "\ufffd" not in "".join(shown)


def test_a_character_comes_with_its_last_byte(builtin: Tokenizer) -> None:
    ids = builtin.encode("🎉")
    assert len(ids) == 4  # otherwise this test shows nothing
    assert stream(builtin.detokenizer([5]), ids) == ["", "", "", "🎉", ""]


def test_broken_bytes_show_when_it_is_certain_and_the_rest_at_the_end(builtin: Tokenizer) -> None:
    a, b, c, d = builtin.encode("🎉")
    x = builtin.encode("x")
    assert stream(builtin.detokenizer([5]), [a, b, *x]) == ["", "", "\ufffdx", ""]
    assert stream(builtin.detokenizer([5]), [*x, a, b, c]) == ["x", "", "", "", "\ufffd"]
    assert stream(builtin.detokenizer([5]), [d]) == ["\ufffd", ""]


def test_a_prompt_may_end_inside_a_character(builtin: Tokenizer) -> None:
    a, b, c, d = builtin.encode("🎉")
    assert stream(builtin.detokenizer([7, a, b]), [c, d]) == ["", "🎉", ""]


def test_special_tokens_are_invisible(builtin: Tokenizer) -> None:
    x = builtin.encode("x")
    assert stream(builtin.detokenizer([5]), [0, *x, 0]) == ["", "x", "", ""]
    assert builtin.decode([0, *x, 0]) == "x"


@given(st.lists(st.integers(0, 4095), max_size=40))
def test_any_tokens_stream_to_their_decoding(token_ids: list[int]) -> None:
    tokenizer = load_builtin()
    text = "".join(stream(tokenizer.detokenizer([5]), token_ids))
    assert text == tokenizer.decode(token_ids) == tokenizer._hf.decode(token_ids, skip_special_tokens=True)


def test_byte_table_is_a_bijection() -> None:
    assert sorted(byte_table().values()) == list(range(256))


def ids_of(*tokens: str | bytes) -> list[int]:
    return [i for t in tokens for i in ([259 + WORDS.index(t)] if isinstance(t, str) else [3 + b for b in t])]


def test_pieces_keep_the_space_after_a_prompt(pieces: Tokenizer) -> None:
    detokenizer = pieces.detokenizer(ids_of("▁Hello"))
    assert isinstance(detokenizer, WindowDetokenizer)
    assert stream(detokenizer, ids_of("▁world", ",", "▁Hello", "lo")) == [" world", ",", " Hello", "lo", ""]


def test_pieces_hold_back_the_bytes_of_a_character(pieces: Tokenizer) -> None:
    shown = stream(pieces.detokenizer(ids_of("▁Hello")), ids_of("🎉".encode(), "世", "é".encode(), "lo"))
    assert shown == ["", "", "", "🎉", "世", "", "é", "lo", ""]


def test_pieces_show_broken_bytes_in_the_end(pieces: Tokenizer) -> None:
    assert stream(pieces.detokenizer(ids_of("▁Hello")), ids_of("lo", b"\xf0\x9f")) == ["lo", "", "", "\ufffd\ufffd"]


def test_pieces_do_not_wait_for_ever_on_bytes_that_are_no_character(pieces: Tokenizer) -> None:
    shown = stream(pieces.detokenizer(ids_of("▁Hello")), ids_of(b"\xff" * 40))
    assert "".join(shown) == "\ufffd" * 40
    assert shown[20] or shown[10] or shown[15]


def test_window_stays_short(pieces: Tokenizer) -> None:
    longest = 0

    def decode(token_ids: list[int]) -> str:
        nonlocal longest
        longest = max(longest, len(token_ids))
        return pieces.decode(token_ids)

    detokenizer = WindowDetokenizer(decode, ids_of("▁Hello") * 50)
    stream(detokenizer, ids_of("▁world") * 100 + [1] * 100 + ids_of(b"\xff" * 100))
    assert longest <= 40


@given(st.lists(st.sampled_from(range(9)), max_size=20))
def test_pieces_stream_to_their_decoding(choices: list[int]) -> None:
    tokens: list[str | bytes] = [*WORDS, "🎉".encode(), "é".encode()]
    tokenizer = make_pieces()
    prompt, token_ids = ids_of("▁Hello"), ids_of(*(tokens[c] for c in choices))
    assert "".join(stream(tokenizer.detokenizer(prompt), token_ids)) == tokenizer.decode(prompt + token_ids)[5:]
