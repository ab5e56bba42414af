import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smoe.sched.kv_ranges import KVRanges


def test_first_fit_and_merge_on_free() -> None:
    kv = KVRanges(10)
    assert [kv.try_reserve(name, 3) for name in "abc"] == [0, 3, 6]
    assert kv.try_reserve("d", 2) is None
    kv.free("a")
    kv.free("c")
    assert not kv.can_reserve(5)  # 3 + 4 free rows, but not side by side
    kv.free("b")
    assert kv.can_reserve(10)
    assert kv.try_reserve("d", 10) == 0
    kv.check_integrity()


def test_an_owner_holds_one_range() -> None:
    kv = KVRanges(10)
    kv.try_reserve("a", 1)
    with pytest.raises(AssertionError, match="a already holds rows"):
        kv.try_reserve("a", 1)


@given(st.integers(1, 40), st.lists(st.tuples(st.booleans(), st.integers(0, 7), st.integers(1, 20)), max_size=60))
def test_rows_are_conserved_and_never_shared(num_rows: int, actions: list[tuple[bool, int, int]]) -> None:
    kv = KVRanges(num_rows)
    owned: dict[str, tuple[int, int]] = {}
    for reserve, number, count in actions:
        owner = str(number)
        if reserve and owner not in owned:
            possible = kv.can_reserve(count)
            start = kv.try_reserve(owner, count)
            assert (start is not None) == possible
            if start is not None:
                owned[owner] = (start, count)
        elif owner in owned:
            del owned[owner]
            kv.free(owner)
        kv.check_integrity()
        rows = [row for start, size in owned.values() for row in range(start, start + size)]
        assert len(rows) == len(set(rows)) == kv.used_rows
        assert all(0 <= row < num_rows for row in rows)
        free = [row not in rows for row in range(num_rows)]
        longest = max(len(run) for run in "".join(".x"[f] for f in free).split("."))
        assert kv.can_reserve(longest) or longest == 0
        assert not kv.can_reserve(longest + 1)


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda kv: kv._owned.update(b=(2, 4)), r"b is \[2, \+4\), expected start 3"),
        (lambda kv: kv._free.clear(), r"3 owned \+ 0 free != 10"),
        (lambda kv: kv._free.__setitem__(slice(None), [(3, 2), (5, 5)]), "free ranges meet unmerged at row 5"),
    ],
)
def test_check_integrity_names_the_terms(break_it: object, message: str) -> None:
    kv = KVRanges(10)
    kv.try_reserve("a", 3)
    break_it(kv)  # type: ignore[operator]
    with pytest.raises(RuntimeError, match=message):
        kv.check_integrity()


def test_used_rows_are_told_to_another_thread() -> None:
    ranges, interval_s = KVRanges(512), sys.getswitchinterval()

    def work() -> None:
        for _ in range(100):
            for owner in map(str, range(200)):
                assert ranges.try_reserve(owner, 2) is not None
            for owner in map(str, range(200)):
                ranges.free(owner)

    worker = threading.Thread(target=work)
    sys.setswitchinterval(1e-6)
    try:
        worker.start()
        while worker.is_alive():
            assert 0 <= ranges.used_rows <= 400
    finally:
        sys.setswitchinterval(interval_s)
        worker.join()
    assert ranges.used_rows == 0
