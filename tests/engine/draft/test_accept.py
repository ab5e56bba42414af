"""Which drafted tokens are kept: greedy as the model alone would, sampled with the distribution of the model alone."""

import itertools

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from smoe.core.sampling import SamplingParams
from smoe.engine.draft.accept import accept_run, normalised_mass
from smoe.engine.random import draft_uniform
from smoe.engine.sampler import draw, on_host, sample

VOCAB = 6
SETTINGS = {
    "plain": SamplingParams(temperature=1.0),
    "warm": SamplingParams(temperature=1.7),
    "top-k": SamplingParams(temperature=0.8, top_k=3),
    "top-p": SamplingParams(temperature=1.3, top_p=0.7),
    "min-p": SamplingParams(temperature=1.1, min_p=0.25),
}


def rows(*seeds: int) -> torch.Tensor:
    return torch.stack([torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)) for seed in seeds])


def accept(logits_NV: torch.Tensor, params: SamplingParams, seed: int, drafted, mass=None):
    logits, best = on_host(logits_NV)
    return accept_run(logits, best, (params, seed, 0), drafted, mass or (None,) * len(drafted))


def ids(tokens) -> list[int | None]:
    return [token.token_id for token in tokens]


@pytest.mark.parametrize("num_right", range(4))
def test_greedy_keeps_what_the_model_would_choose_and_adds_its_own(num_right: int) -> None:
    logits = rows(1, 2, 3, 4)
    own = logits.argmax(-1).tolist()
    drafted = [own[i] if i != num_right else (own[i] + 1) % VOCAB for i in range(3)]
    assert ids(accept(logits, SamplingParams(), 0, drafted)) == own[: num_right + 1]


def test_without_drafted_tokens_it_is_the_sampler() -> None:
    for seed, params in itertools.product(range(20), (SamplingParams(logprobs=2), SETTINGS["top-p"])):
        assert list(accept(rows(5), params, seed, ())) == sample(rows(5), [(params, seed, 0)])


def test_logprobs_are_those_of_the_model() -> None:
    logits = rows(1, 2)
    tokens = accept(logits, SamplingParams(logprobs=1), 0, logits[:1].argmax(-1).tolist())
    for token, row_V in zip(tokens, logits, strict=True):
        assert token.logprob is not None
        assert token.logprob.logprob == pytest.approx(float(row_V.log_softmax(-1).max()))


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(temperature=1.0)], ids=["greedy", "sampled"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_row_that_is_not_finite_ends_the_run_where_it_is_reached(params: SamplingParams, bad: float) -> None:
    logits = torch.full((3, VOCAB), -30.0)
    logits[0, 2] = logits[1, 3] = logits[2, 4] = 30.0
    logits[1] = bad
    tokens = accept(logits, params, 0, [2, 3])
    assert ids(tokens) == [2, None]
    assert tokens[1].error is not None
    assert tokens[1].error.startswith("numeric: logits of token 1 of the answer")
    assert ids(accept(logits, params, 0, [1, 3])) == [2], "a row behind a wrong guess says nothing"


@pytest.mark.parametrize(
    ("setting", "draft"),
    [*((setting, "bad") for setting in SETTINGS), ("plain", "good"), ("warm", "peaked"), ("warm", "looked up")],
)
def test_two_tokens_have_the_distribution_of_the_model_alone(setting: str, draft: str) -> None:
    """Each of the 36 pairs that model and draft make up over two places, as often as the model alone makes it."""
    params, rounds = SETTINGS[setting], 2000
    model = rows(*range(10, 10 + VOCAB + 1))  # the first place, and the second after each token
    other = {
        "bad": rows(*range(50, 50 + VOCAB + 1)),
        "good": model + 0.3 * rows(*range(70, 70 + VOCAB + 1)),
        "peaked": 8 * rows(*range(90, 90 + VOCAB + 1)),
        "looked up": None,
    }[draft]
    p = [normalised_mass(row, params) for row in model.numpy()]
    counts = np.zeros((VOCAB, VOCAB))
    for seed in range(rounds):
        drafted, mass = [], []
        for place in range(2):
            state = 0 if place == 0 else 1 + drafted[0]
            if other is None:
                drafted.append(place + 1)
                mass.append(None)
            else:
                q = normalised_mass(other[state].numpy(), params).astype(np.float32)
                drafted.append(draw(q, draft_uniform(seed, place)))
                mass.append(q)
        tokens = accept(model[[0, 1 + drafted[0], 0]], params, seed, drafted, mass)
        first = tokens[0].token_id
        assert first is not None
        if len(tokens) == 1:  # the next window begins at the second place, without a draft
            logits, best = on_host(model[1 + first : 2 + first])
            tokens += accept_run(logits, best, (params, seed, 1), (), ())
        assert tokens[1].token_id is not None
        counts[first, tokens[1].token_id] += 1
    expected = rounds * p[0][:, None] * np.stack(p[1:])
    assert (counts[expected == 0] == 0).all()
    likely = expected > 5
    observed, wanted = counts[likely], expected[likely]
    rest = rounds - wanted.sum()
    if rest > 5:
        observed, wanted = np.append(observed, rounds - observed.sum()), np.append(wanted, rest)
    wanted *= observed.sum() / wanted.sum()
    assert chisquare(observed, wanted).pvalue > 1e-4


def test_a_rerun_draws_the_same() -> None:
    logits, params = rows(1, 2, 3), SETTINGS["plain"]
    mass = [normalised_mass(row, params) for row in rows(7, 8).numpy()]
    for seed in range(20):
        assert accept(logits, params, seed, [1, 2], mass) == accept(logits, params, seed, [1, 2], mass)
