import math

import numpy as np
import pytest
import torch

from smoe.core.sampling import SamplingParams
from smoe.engine.sampler import Draw, draw, sample, token_mass

LOGITS = torch.tensor([1.0, 3.0, -1.0, 2.5, 0.0, -4.0, 2.0])  # 7: no power of two


def params(**values: object) -> SamplingParams:
    return SamplingParams(**values)  # type: ignore[arg-type]


def exact(temperature: float, keep: list[int]) -> list[float]:
    weights = [math.exp(float(x) / temperature) if i in keep else 0.0 for i, x in enumerate(LOGITS)]
    return [w / sum(weights) for w in weights]


# Probabilities at temperature 1, best first: 1: .459, 3: .278, 6: .169, 0: .062, 4: .023, 2: .008, 5: .0004
CASES = [
    (params(temperature=1.0), exact(1.0, list(range(7)))),
    (params(temperature=0.5), exact(0.5, list(range(7)))),
    (params(temperature=2.0), exact(2.0, list(range(7)))),
    (params(temperature=1.0, top_k=3), exact(1.0, [1, 3, 6])),
    (params(temperature=1.0, top_k=1), exact(1.0, [1])),
    (params(temperature=1.0, top_k=100), exact(1.0, list(range(7)))),
    (params(temperature=1.0, top_p=0.9), exact(1.0, [1, 3, 6])),
    (params(temperature=1.0, top_p=0.91), exact(1.0, [1, 3, 6, 0])),
    (params(temperature=1.0, top_p=0.01), exact(1.0, [1])),
    (params(temperature=1.0, min_p=0.3), exact(1.0, [1, 3, 6])),
    (params(temperature=1.0, min_p=1.0), exact(1.0, [1])),
    # top-p counts what top-k has left: 1 and 3 weigh 0.81 of {1, 3, 6}, but only 0.74 of all
    (params(temperature=1.0, top_k=3, top_p=0.8), exact(1.0, [1, 3])),
    (params(temperature=2.0, top_k=4, min_p=0.5), exact(2.0, [1, 3, 6])),
]


@pytest.mark.parametrize(("chosen", "expected"), CASES)
def test_distribution_is_exact(chosen: SamplingParams, expected: list[float]) -> None:
    mass = token_mass(LOGITS.numpy(), chosen)
    assert np.allclose(mass / mass.sum(), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize(("chosen", "expected"), CASES)
def test_draws_follow_the_distribution(chosen: SamplingParams, expected: list[float]) -> None:
    n = 2000
    draws: list[Draw] = [(chosen, 11, index) for index in range(n)]
    counts = np.bincount([t.token_id or 0 for t in sample(LOGITS.expand(n, 7), draws)], minlength=7)
    wanted = n * np.array(expected)
    assert (counts[wanted == 0] == 0).all()
    seen = wanted > 5
    chi_square = ((counts[seen] - wanted[seen]) ** 2 / wanted[seen]).sum()
    assert chi_square < 22.5  # 6 degrees of freedom, p = 0.001


def test_greedy_takes_the_first_of_equals() -> None:
    tokens = sample(torch.tensor([[0.0, 2.0, 2.0], [5.0, 1.0, 2.0]]), [(params(), 0, 0)] * 2)
    assert [t.token_id for t in tokens] == [1, 0]


def test_ties_at_a_bound_are_all_kept() -> None:
    logits = np.array([1.0, 2.0, 1.0, 0.0], dtype=np.float32)
    assert (token_mass(logits, params(temperature=1.0, top_k=2)) > 0).tolist() == [True, True, True, False]
    assert (token_mass(logits, params(temperature=1.0, top_p=0.6)) > 0).tolist() == [True, True, True, False]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_that_is_not_finite_is_an_error_of_that_row_alone(bad: float, temperature: float) -> None:
    rows = LOGITS.repeat(3, 1)
    rows[1] = bad if bad < 0 else rows[1]
    rows[1, 4] = bad
    chosen = params(temperature=temperature, top_k=3, top_p=0.9)
    good, error, also_good = sample(rows, [(chosen, 1, 5)] * 3)
    assert error.token_id is None
    assert (error.error or "").startswith("numeric: logits of token 5 of the answer are not finite")
    assert good == also_good == sample(LOGITS[None], [(chosen, 1, 5)])[0]


def test_masked_tokens_are_legal_and_never_drawn() -> None:
    row = LOGITS.clone()
    row[1] = -math.inf
    tokens = sample(row.expand(300, 7), [(params(temperature=5.0), 0, i) for i in range(300)])
    assert {t.token_id for t in tokens} == {0, 2, 3, 4, 5, 6}


@pytest.mark.parametrize("u", [0.0, 0.5, 1 - 2**-53])
def test_no_number_draws_a_token_without_mass(u: float) -> None:
    mass = np.array([0.0, 0.3, 0.0, 0.7, 0.0], dtype=np.float32)
    assert draw(mass, u) in (1, 3)


def test_logprobs_are_those_of_the_model_before_temperature() -> None:
    chosen = params(temperature=0.3, top_k=1, logprobs=3)
    logprob = sample(LOGITS[None], [(chosen, 0, 0)])[0].logprob
    expected = LOGITS.double().log_softmax(-1)
    assert logprob is not None
    assert logprob.token_id == 1
    assert logprob.logprob == pytest.approx(float(expected[1]))
    assert [i for i, _ in logprob.top] == [1, 3, 6]
    assert [x for _, x in logprob.top] == pytest.approx(expected[[1, 3, 6]].tolist())


def test_number_of_logprobs() -> None:
    tokens = sample(LOGITS.expand(3, 7), [(params(logprobs=n), 0, 0) for n in (None, 0, 20)])
    assert tokens[0].logprob is None
    assert tokens[1].logprob is not None
    assert tokens[1].logprob.top == ()
    assert tokens[2].logprob is not None
    assert len(tokens[2].logprob.top) == 7


def test_a_token_depends_on_its_own_row_alone() -> None:
    torch.manual_seed(0)
    rows = 3 * torch.randn(20, 301)
    choices = [params(), params(temperature=0.7), params(temperature=1.0, top_p=0.8), params(temperature=1.3, top_k=9)]
    draws: list[Draw] = [(choices[i % 4], 100 + i, i) for i in range(20)]
    together = sample(rows, draws)
    assert together == [sample(rows[i : i + 1], [draws[i]])[0] for i in range(20)]
    assert together[::-1] == sample(rows.flip(0), draws[::-1])
