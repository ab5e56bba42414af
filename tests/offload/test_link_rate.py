from smoe.offload.link_rate import LinkRate


def test_a_guess_then_what_is_measured_averaged():
    rate = LinkRate(100.0)
    assert rate.update(0, 0.0) == 100.0
    assert rate.update(40, 2.0) == 20.0, "a guess counts nothing once something has come"
    assert rate.update(40, 2.0) == 20.0
    assert rate.update(80, 3.0) == 0.75 * 20 + 0.25 * 40
    assert rate.bytes_per_second == 25.0


def test_bytes_without_time_wait_for_it():
    rate = LinkRate(100.0)
    assert rate.update(40, 0.0) == 100.0
    assert rate.update(40, 1.0) == 40.0
