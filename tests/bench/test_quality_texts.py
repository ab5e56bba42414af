import pytest

from smoe.bench.quality.texts import DOMAINS, SWITCHING, domain_texts, heldout_tokens, switching_texts, windows
from smoe.core.errors import ConfigError

TOKENS = {name: list(range(1000 * i, 1000 * i + 400)) for i, name in enumerate(DOMAINS)}


def domain_of(token: int) -> int:
    return token // 1000


def test_packaged_texts_have_enough_in_every_domain() -> None:
    sizes = {name: len(ids) for name, ids in heldout_tokens(lambda text: list(text.encode())).items()}
    assert sizes.keys() == set(DOMAINS)
    assert all(90_000 < size < 100_000 for size in sizes.values())


def test_windows_do_not_overlap_and_reach_the_end() -> None:
    assert windows(range(10), 3, 3) == [(0, 1, 2), (3, 4, 5), (6, 7, 8)]
    with pytest.raises(ConfigError, match="windows: '2 of 6 tokens' \\(the text has 11 tokens\\)"):
        windows(range(11), 2, 6)


def test_domains_and_switching_streams_share_no_token() -> None:
    alone = domain_texts(TOKENS, 4, 50)
    mixed = switching_texts(TOKENS, 3, 5, 10)
    used = [token for text in alone + mixed for token in text.token_ids]
    assert len(set(used)) == len(used) == 4 * 4 * 50 + 3 * 5 * 10
    assert [text.domain for text in alone] == [name for name in DOMAINS for _ in range(4)]


def test_every_segment_of_a_stream_is_another_domain() -> None:
    texts = switching_texts(TOKENS, 3, 5, 10)
    for text in texts:
        assert (text.domain, text.switches) == (SWITCHING, (10, 20, 30, 40))
        domains = [domain_of(token) for token in text.token_ids]
        changes = tuple(i for i in range(1, 50) if domains[i] != domains[i - 1])
        assert changes == text.switches
    assert [domain_of(text.token_ids[0]) for text in texts] == [0, 1, 2]
