from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smoe.core.pages import PAGE_BYTES
from smoe.offload.layout import plan_layout

P = PAGE_BYTES


@dataclass(frozen=True)
class Range:
    path: str
    offset: int
    nbytes: int


@pytest.mark.parametrize(
    ("ranges", "reads"),
    [
        ([("a", 0, 100)], [(0, P)]),
        ([("a", P - 1, 2)], [(0, 2 * P)]),
        ([("a", 8, 100), ("a", 108, 50)], [(0, P)]),
        ([("a", 0, P), ("a", P, P)], [(0, 2 * P)]),
        ([("a", 0, 10), ("a", P, 10)], [(0, 2 * P)]),
        ([("a", 0, 10), ("a", 2 * P, 10)], [(0, P), (2 * P, P)]),
        ([("a", 2 * P, 10), ("a", 0, 10)], [(0, P), (2 * P, P)]),
        ([("a", 0, 10), ("b", 10, 10)], [(0, P), (0, P)]),
        ([("a", 0, 3 * P), ("a", 8, 8)], [(0, 3 * P)]),
    ],
    ids=["one", "across", "adjacent", "page-adjacent", "touching-pages", "apart", "unordered", "files", "inside"],
)
def test_reads(ranges, reads):
    layout = plan_layout({str(i): Range(*r) for i, r in enumerate(ranges)})
    assert [(s.file_offset, s.length) for s in layout.segments] == reads
    assert layout.room == sum(length for _, length in reads)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 9 * P), st.integers(1, 3 * P)), min_size=1, max_size=6))
def test_views_hold_the_bytes_of_their_ranges(ranges):
    files = {path: bytes((i * 7 + i // P + ord(path)) % 256 for i in range(13 * P)) for path in "ab"}
    layout = plan_layout({str(i): Range(*r) for i, r in enumerate(ranges)})
    slot = bytearray(b"?" * layout.room)
    for s in layout.segments:
        assert s.file_offset % P == s.slot_offset % P == s.length % P == 0
        assert 0 <= s.length - s.needed < P
        slot[s.slot_offset : s.slot_offset + s.length] = files[s.path][s.file_offset : s.file_offset + s.length]
    assert len(slot) == layout.room
    for i, (path, offset, nbytes) in enumerate(ranges):
        at, size = layout.parts[str(i)]
        assert size == nbytes
        assert at % P == offset % P
        assert slot[at : at + size] == files[path][offset : offset + nbytes]
