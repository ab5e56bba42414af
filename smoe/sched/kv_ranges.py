"""Who owns which rows of the KV arena."""

from bisect import bisect_left


class KVRanges:
    """Hands out contiguous ranges of `num_rows` rows, first fit; freed neighbours merge.

        row 0                                              num_rows
        | owner a | free | owner b | owner c |    free     |

    Every row belongs to exactly one owner or one free range, so no two sequences can alias.
    """

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows
        self._free: list[tuple[int, int]] = [(0, num_rows)] if num_rows else []  # (start, count), by start
        self._owned: dict[str, tuple[int, int]] = {}

    @property
    def used_rows(self) -> int:
        """From any thread."""
        return sum(count for _, count in list(self._owned.values()))

    def can_reserve(self, count: int) -> bool:
        return any(free >= count for _, free in self._free)

    def try_reserve(self, owner: str, count: int) -> int | None:
        """First row of `count` rows now owned by `owner`, or None when no free range is that long."""
        assert count > 0, f"{owner} reserves {count} rows"
        assert owner not in self._owned, f"{owner} already holds rows"
        for index, (start, free) in enumerate(self._free):
            if free >= count:
                if free == count:
                    del self._free[index]
                else:
                    self._free[index] = (start + count, free - count)
                self._owned[owner] = (start, count)
                return start
        return None

    def free(self, owner: str) -> None:
        start, count = self._owned.pop(owner)
        index = bisect_left(self._free, (start, 0))
        if index < len(self._free) and self._free[index][0] == start + count:
            count += self._free.pop(index)[1]
        if index and sum(self._free[index - 1]) == start:
            start, before = self._free[index - 1]
            self._free[index - 1] = (start, before + count)
        else:
            self._free.insert(index, (start, count))

    def check_integrity(self) -> None:
        """Raises RuntimeError unless owned and free ranges tile the arena and no two free ranges touch."""
        tiles = sorted(
            [(start, count, owner) for owner, (start, count) in self._owned.items()]
            + [(start, count, None) for start, count in self._free],
            key=lambda tile: tile[0],
        )
        row, before_free = 0, False
        for start, count, owner in tiles:
            if start != row or count <= 0:
                raise RuntimeError(f"KV rows: {owner or 'free'} is [{start}, +{count}), expected start {row}")
            if before_free and owner is None:
                raise RuntimeError(f"KV rows: free ranges meet unmerged at row {start}")
            row, before_free = start + count, owner is None
        if row != self.num_rows:
            owned, free = self.used_rows, sum(count for _, count in self._free)
            raise RuntimeError(f"KV rows: {owned} owned + {free} free != {self.num_rows} in the arena")
