"""Costs fitted to steps whose prices are known."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from smoe.core.errors import ConfigError
from smoe.sim.serving.fitted import FittedCost, MeasuredStep, StepProfile, distinct_experts, fit
from smoe.sim.serving.front import ClosedLoop, Pair
from smoe.sim.serving.load import StepLoad

PRICES = (2e-3, 1e-4, 5e-5, 7e-5, 1e-6, 3e-9, 2e-8)
TRUE = FittedCost(seconds=PRICES, moe_layers=6, num_experts=64, top_k=8)


def profile(noise: float = 0.0, count: int = 400) -> StepProfile:
    draw = np.random.default_rng(0)
    steps = []
    for _ in range(count):
        batch, context, prompt = int(draw.integers(0, 33)), int(draw.integers(1, 400)), int(draw.integers(0, 500))
        load = StepLoad(
            prefill_tokens=prompt,
            prefill_pairs=prompt * (prompt + 1) // 2,
            decode_rows=batch,
            decode_pairs=batch * context,
            kv_rows=batch * context + prompt,
            sequences=batch + (prompt > 0),
            sampled=batch + (prompt > 0),
        )
        steps.append(MeasuredStep(load, TRUE.of(load) * float(np.exp(noise * draw.standard_normal()))))
    return StepProfile(moe_layers=6, num_experts=64, top_k=8, steps=tuple(steps), setting={"model": "made up"})


def test_known_prices_are_found() -> None:
    found = fit(profile())
    assert found.cost.seconds == pytest.approx(PRICES, rel=1e-6)
    assert found.p90_error < 1e-6
    assert found.steps == 400


def test_noise_is_told_and_does_not_move_what_steps_take() -> None:
    found = fit(profile(noise=0.2))
    assert found.median_error == pytest.approx(0.2 * 0.674, rel=0.25), "half of normal deviates are within 0.674"
    for step in profile().steps[:100]:
        assert found.cost.of(step.load) == pytest.approx(step.seconds, rel=0.1)


def test_no_price_is_below_zero() -> None:
    made = profile()
    flat = replace(made, steps=tuple(replace(step, seconds=0.01) for step in made.steps))
    found = fit(flat).cost
    assert min(found.seconds) >= 0
    assert found.of(StepLoad(decode_rows=3, sequences=3)) == pytest.approx(0.01, rel=1e-3)


def test_distinct_experts_by_hand() -> None:
    assert distinct_experts(6, 64, 8, 0) == 0
    assert distinct_experts(6, 64, 8, 1) == pytest.approx(48)
    assert distinct_experts(1, 4, 2, 2) == pytest.approx(3), "a quarter of the experts is left out by both rows"


def test_a_profile_is_read_as_it_was_written(tmp_path: Path) -> None:
    made = profile(count=30)
    made.write(tmp_path / "p.json")
    assert StepProfile.read(tmp_path / "p.json") == made
    pair = Pair(over=2e-3, straight=1e-3)
    fronted = replace(made, front=(ClosedLoop(streams=3, token_s=pair, request_s=pair),))
    fronted.write(tmp_path / "q.json")
    assert StepProfile.read(tmp_path / "q.json") == fronted


WRONG = [
    ('"schema": 1', '"schema": 2', "schema: 2 (1)"),
    ('"seconds"', '"minutes"', "a profile of steps: KeyError('seconds')"),
    ('"sampled"', '"guessed"', "a profile of steps: TypeError"),
    ("{", "[", "a profile of steps: JSONDecodeError"),
]


@pytest.mark.parametrize(("old", "new", "message"), WRONG)
def test_a_file_that_is_wrong(old: str, new: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    profile(count=30).write(path)
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(ConfigError, match=re.escape(message)):
        StepProfile.read(path)


def test_too_few_steps() -> None:
    with pytest.raises(ConfigError, match=r"step_profile: '27 steps' \(at least 28\)"):
        fit(profile(count=27))
