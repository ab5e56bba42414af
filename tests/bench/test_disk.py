from pathlib import Path

import pytest

from smoe.bench import disk
from smoe.offload.arena import Arena

PAGE = 4096


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "f"
    path.write_bytes(b"".join(bytes([number]) * PAGE for number in range(4)))
    return path


def test_reads_go_round_the_slots(file: Path) -> None:
    arena = Arena(2, PAGE)
    rate = disk.plain_rate([(file, PAGE * number) for number in range(3)], PAGE, arena, 1)
    assert rate > 0
    assert bytes(arena.buffer(1)) == bytes([1]) * PAGE
    assert bytes(arena.buffer(0)) == bytes([2]) * PAGE


def test_a_piece_beyond_the_end_is_an_error_and_not_a_fast_read(file: Path) -> None:
    with pytest.raises(OSError, match="ends 4096 bytes early"):
        disk.plain_rate([(file, 3 * PAGE)], 2 * PAGE, Arena(1, 2 * PAGE), 2)


def test_the_best_number_of_threads_has_the_highest_median() -> None:
    assert disk.best({1: [1.0, 9.0, 1.0], 2: [2.0, 2.0, 2.0]}) == [2.0, 2.0, 2.0]
