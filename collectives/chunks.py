"""How own rows are cut for a dispatch."""

from dataclasses import dataclass

AHEAD = 2
"""Chunks that are sent before the first has come back."""


@dataclass(frozen=True, slots=True)
class Chunks:
    """Of at most `max_rows`: smaller ones cost more than they hide. A rank with `overlap_rows` own rows or more
    computes what each other rank sent when it has come, while the rest is under way; with fewer, or None, all at once.
    """

    max_rows: int = 1024
    overlap_rows: int | None = 64

    def overlap(self, rows: int) -> bool:
        return self.overlap_rows is not None and rows >= self.overlap_rows

    def count(self, rows: int) -> int:
        """At least one, which tells the others that there is no more."""
        return max(1, -(-rows // self.max_rows))
