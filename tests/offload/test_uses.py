"""How what is asked for is counted, and what becomes of prefetches."""

from tests.offload.residencies import load, make, prefetch


def test_a_collision_is_a_miss_of_what_the_same_epoch_brought_in():
    residency = make(1)

    def misses():
        stats = residency.uses.stats()
        return stats.cold_misses, stats.collision_misses, stats.compulsory_misses

    for expert in (0, 1, 0):
        load(residency, 0, expert)
    assert misses() == (2, 1, 2)
    residency.begin_epoch()
    load(residency, 0, 1)
    assert misses() == (3, 1, 2)
    assert (residency.uses.stats().evictions, residency.peak_used) == (3, 1)


def counts(residency):
    stats = residency.uses.stats()
    return (stats.prefetched, stats.prefetch_used, stats.late, stats.wasted, stats.hits)


def test_a_prefetch_ends_used_late_or_wasted():
    residency = make(4)
    for expert in range(4):
        view = prefetch(residency, 0, expert)
        if expert != 1:
            residency.commit(view)
    assert residency.ask(0, [0, 1]) == []
    assert counts(residency) == (4, 1, 1, 0, 1)
    (late,) = residency.claim(0, [0, 1])
    residency.commit(late)
    residency.unpin(late)
    residency.check_idle()
    for expert in range(4, 8):
        load(residency, 0, expert)
    assert counts(residency) == (4, 1, 1, 2, 1)
    assert residency.ask(0, [2]) == [2]
    assert residency.uses.stats().collision_misses == 1, "brought in and evicted within this epoch"


def test_a_hit_uses_a_prefetch_once():
    residency = make(2)
    residency.commit(prefetch(residency, 0, 0))
    assert residency.try_hit_all(0, [0])
    assert residency.ask(0, [0]) == []
    assert counts(residency) == (1, 1, 0, 0, 2)


def test_a_failed_prefetch_is_wasted_unless_it_was_asked_for():
    residency = make(2)
    first, second = prefetch(residency, 0, 0), prefetch(residency, 0, 1)
    residency.check_idle()
    residency.ask(0, [1])
    residency.fail(first)
    residency.fail(second)
    assert counts(residency) == (2, 0, 1, 1, 0)
    residency.check_idle()
