import numpy as np
import pytest

from smoe.bench.quality.bootstrap import paired_rise, perplexity


def test_perplexity_weighs_tokens_not_texts() -> None:
    assert perplexity([np.log([2.0]), np.log([4.0, 4.0])]) == pytest.approx(2 ** (5 / 3))


def test_interval_of_a_mean_of_many_is_the_normal_one() -> None:
    generator = np.random.default_rng(3)
    base = generator.normal(3, 1, size=(500, 20))
    gain = generator.normal(0.02, 0.01, size=(500, 1))
    rise = paired_rise([[(b + g, b) for b, g in zip(base, gain, strict=True)]])
    half = 1.96 * float(gain.std()) / np.sqrt(500)
    assert rise.value == pytest.approx(np.expm1(gain.mean()))
    assert rise.low == pytest.approx(np.expm1(gain.mean() - half), rel=0.02)
    assert rise.high == pytest.approx(np.expm1(gain.mean() + half), rel=0.02)


def test_two_texts_give_their_own_values_as_bounds() -> None:
    # Half of the draws have one text twice, each of them a quarter: far above the 2.5 % of each bound.
    zero, ones = np.zeros(2), np.ones(2)
    rise = paired_rise([[(zero, zero), (ones, zero)]])
    assert (rise.low, rise.high) == pytest.approx((0.0, np.e - 1))
    assert rise.value == pytest.approx(np.expm1(0.5))


def test_texts_count_by_their_length() -> None:
    rise = paired_rise([[(np.ones(1), np.zeros(1)), (np.zeros(3), np.zeros(3))]])
    assert rise.value == pytest.approx(np.expm1(0.25))
    assert (rise.low, rise.high) == pytest.approx((0.0, np.expm1(1.0)))


def test_groups_are_drawn_from_separately() -> None:
    # Drawn together these four texts would give an interval; within groups there is nothing to vary.
    zero, ones = np.zeros(2), np.ones(2)
    rise = paired_rise([[(zero, zero)] * 2, [(ones, zero)] * 2])
    assert (rise.low, rise.value, rise.high) == pytest.approx((np.expm1(0.5),) * 3)


def test_equal_scores_give_exactly_zero_and_seeds_repeat() -> None:
    texts = [np.random.default_rng(i).normal(size=9) for i in range(40)]
    rise = paired_rise([[(text, text) for text in texts]])
    assert (rise.low, rise.value, rise.high) == (0.0, 0.0, 0.0)
    pairs = [(text + 0.01 * i, text) for i, text in enumerate(texts)]
    assert paired_rise([pairs], seed=1) == paired_rise([pairs], seed=1) != paired_rise([pairs], seed=2)
