"""Where the bytes of one expert come from in its files, and where they land in a slot. Torch-free.

Direct reads move whole pages, so the bytes of a range land as far into their first page as they lie in the file's:

    file    |....[ gate ][ up ]..|          |..[ down ].....|        pages, [ranges] that are wanted
    slot    |....[ gate ][ up ]..|..[ down ].....|                   segments side by side, each whole pages
             ^ file_offset        ^ slot_offset of the second

Nothing is moved afterwards: a part's view starts at its shift inside the slot.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from smoe.core.pages import PAGE_BYTES, whole_pages


class ByteRange(Protocol):
    """`nbytes` bytes of the file `path` from `offset`."""

    @property
    def path(self) -> str: ...

    @property
    def offset(self) -> int: ...

    @property
    def nbytes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Segment:
    """One read: `length` bytes (whole pages) of `path` from `file_offset` (a page boundary) to `slot_offset`.

    Only the first `needed` bytes hold wanted ranges; the file may end after them.
    """

    path: str
    file_offset: int
    length: int
    needed: int
    slot_offset: int


@dataclass(frozen=True, slots=True)
class SlotLayout:
    """`parts[name]` is (offset in the slot, bytes); `room` is the slot memory it takes, whole pages."""

    segments: tuple[Segment, ...]
    parts: Mapping[str, tuple[int, int]]
    room: int


def plan_layout(ranges: Mapping[str, ByteRange]) -> SlotLayout:
    """The fewest reads for `ranges`: those whose pages touch or overlap share one segment."""
    in_file_order = sorted(ranges.items(), key=lambda item: (item[1].path, item[1].offset))
    segments: list[Segment] = []
    parts: dict[str, tuple[int, int]] = {}
    room = 0
    for name, part in in_file_order:
        start, needed_end = part.offset // PAGE_BYTES * PAGE_BYTES, part.offset + part.nbytes
        end = whole_pages(needed_end)
        last = segments[-1] if segments else None
        if last is not None and last.path == part.path and start <= last.file_offset + last.length:
            start = last.file_offset
            length = max(end - start, last.length)
            needed = max(needed_end - start, last.needed)
            segments[-1] = Segment(part.path, start, length, needed, last.slot_offset)
        else:
            segments.append(Segment(part.path, start, end - start, needed_end - start, room))
        room = segments[-1].slot_offset + segments[-1].length
        parts[name] = (segments[-1].slot_offset + part.offset - start, part.nbytes)
    return SlotLayout(tuple(segments), parts, room)
