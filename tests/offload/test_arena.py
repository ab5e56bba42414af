"""The slots' memory: whose it is, and that it goes back."""

from smoe.core.pages import PAGE_BYTES
from smoe.offload.arena import Arena


def test_slots_are_apart_and_a_released_one_alone_loses_its_contents() -> None:
    arena = Arena(3, 2 * PAGE_BYTES)
    for slot in range(3):
        arena.tensor(slot).fill_(slot + 1)
    arena.release(1)
    assert [int(arena.tensor(slot).sum()) for slot in range(3)] == [2 * PAGE_BYTES, 0, 6 * PAGE_BYTES]


def test_closing_gives_all_memory_back_while_views_live() -> None:
    arena = Arena(2, PAGE_BYTES)
    view = arena.tensor(0)
    view.fill_(7)
    arena.close()
    assert int(view.sum()) == 0  # the pages are new ones
    arena.close()
