import numpy as np

from smoe.engine.random import derive_seed, uniform


def test_numbers_are_functions_of_seed_and_index() -> None:
    values = {(seed, index): uniform(seed, index) for seed in (0, 1, 2**63 - 1) for index in range(50)}
    assert len(set(values.values())) == 150
    assert all(uniform(*key) == value for key, value in reversed(values.items()))
    assert all(0 <= value < 1 for value in values.values())


def test_numbers_do_not_change_between_versions() -> None:
    assert [uniform(5, i) for i in range(3)] == [0.7337459554446363, 0.24899883245565346, 0.8479539668545346]


def test_numbers_are_uniform_along_both_arguments() -> None:
    for values in ([uniform(3, i) for i in range(2000)], [uniform(s, 3) for s in range(2000)]):
        counts = np.histogram(values, bins=20, range=(0, 1))[0]
        assert ((counts - 100) ** 2 / 100).sum() < 43.8  # chi-square, 19 degrees of freedom, p = 0.001


def test_derived_seeds_are_valid_distinct_and_apart_from_the_numbers_of_tokens() -> None:
    seeds = [derive_seed(5, counter) for counter in range(100)]
    assert len(set(seeds)) == 100
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert uniform(5, 0) != (seeds[0] >> 10) * 2.0**-53
