"""Tokens near switches, groups, and what the report adds up."""

from pathlib import Path

import numpy as np
import pytest

from smoe.bench.quality import report
from smoe.bench.quality.bootstrap import Interval
from smoe.bench.quality.compare import AFTER_SWITCH, Outcome, near_switches
from smoe.bench.quality.contenders import LOSSY, WAIT
from smoe.bench.quality.gates import gate_weights
from smoe.bench.quality.ideal import Tally
from smoe.bench.quality.plot import draw
from smoe.bench.quality.run import FULL, QUICK, make_groups
from smoe.bench.quality.texts import DOMAINS, SWITCHING, Text
from smoe.bench.result import Result
from smoe.offload.policies.catalog import PRESETS
from smoe.offload.policies.spec import parse_policies

LENGTH, SWITCH = 60, 30


def outcome(group: str, gain: float, *, mass: float = 1.0) -> Outcome:
    """Two texts, whose tokens cost `gain` nats more, and one more nat right after the switch."""
    text = Text(domain=group, token_ids=tuple(range(LENGTH)), switches=(SWITCH,) if group == SWITCHING else ())
    exact, lossy = np.ones(LENGTH - 1), np.full(LENGTH - 1, 1 + gain)
    if group == SWITCHING:
        lossy[SWITCH - 1 : SWITCH - 1 + AFTER_SWITCH] += 1  # nats[i] is of token i + 1
    tally = Tally(forwards=10, rows=20, choices=80, substituted=8, waited=4, admitted=2, mass=mass)
    pairs = [(lossy, exact)] * 2
    return Outcome(group=group, pairs=pairs, tally=tally, estimate=tally, texts=[text] * 2)


def test_tokens_right_after_a_switch_and_the_others_are_all() -> None:
    found = outcome(SWITCHING, 0.5)
    (near, _), _ = near_switches(found.texts, found.pairs, right_after=True)
    (far, _), _ = near_switches(found.texts, found.pairs, right_after=False)
    assert (len(near), set(near)) == (AFTER_SWITCH, {2.5})
    assert (len(far), set(far)) == (LENGTH - 1 - AFTER_SWITCH, {1.5})
    assert found.rise_after_switches(right_after=True).value == pytest.approx(np.expm1(1.5))


def test_a_group_warms_up_with_a_text_of_its_own() -> None:
    tokens = {name: list(range(9000 * i, 9000 * i + 9000)) for i, name in enumerate(DOMAINS)}
    groups = make_groups(tokens, FULL)
    assert [group.name for group in groups] == [*DOMAINS, SWITCHING]
    used = [token for group in groups for text in group.all for token in text.token_ids]
    assert len(set(used)) == len(used)
    for group in groups[:-1]:
        assert {text.domain for text in group.all} == {group.name}
        assert len(group.texts) == FULL.texts
    assert FULL.warm_up + FULL.timed <= FULL.segments * FULL.segment
    assert QUICK.warm_up + QUICK.timed <= QUICK.segments * QUICK.segment


def test_contenders_are_what_they_say() -> None:
    assert not parse_policies(WAIT.policy).lossy
    assert all(parse_policies(contender.policy).lossy for contender in LOSSY)
    names = [contender.name for contender in LOSSY]
    assert len(set(names)) == len(names)
    for preset in PRESETS:  # the report pairs these
        assert {preset, f"{preset}, no admission"} <= set(names)
    for contender in LOSSY:
        assert contender.keeps_first == ("substitute:all" not in contender.policy)


def test_admission_is_compared_with_none_on_the_same_texts() -> None:
    result = Result(name="r", config={}, environment={})
    groups = ["prose", "code", SWITCHING]
    outcomes = {
        "p": [outcome(group, 0.25) for group in groups],
        "p, no admission": [outcome(group, 0.5) for group in groups],
    }
    report.add_admission(outcomes, "p", "p, no admission", result)
    assert [figure.value for figure in result.summary] == pytest.approx([100 * np.expm1(-0.25)] * 3)


def test_correlation_is_over_policies_and_counts_only_those_named() -> None:
    result = Result(name="r", config={}, environment={})
    outcomes = {str(i): [outcome("prose", 0.1 * i, mass=i)] for i in range(4)} | {"other": [outcome("prose", 9.0)]}
    report.add_mass_correlation(outcomes, ["0", "1", "2", "3"], result)
    assert result.summary[0].value == pytest.approx(1.0)


def test_samples_have_tokens_rises_and_the_gap_to_the_estimate() -> None:
    result = Result(name="r", config={}, environment={})
    report.add_outcomes(LOSSY[0], [outcome("prose", 0.25), outcome(SWITCHING, 0.25)], result)
    prose = result.samples[LOSSY[0].name]["prose"]  # type: ignore[index]
    assert (prose["share"], prose["mean_mass"], prose["waited_per_token"]) == (0.1, 0.05, 0.4)
    assert prose["off_policy_gap"] == {"share": 0.0, "mean_mass": 0.0}
    assert prose["rise"]["value"] == pytest.approx(np.expm1(0.25))
    assert result.summary[0].value == pytest.approx(100 * np.expm1(0.25))
    assert "10.0% substituted, m 0.050" in str(result.summary[0].bound)


@pytest.mark.parametrize("timed", [{}, {"a": 10.0, "b": 5.0}])
def test_picture(tmp_path: Path, timed: dict[str, float]) -> None:
    rises = {"a": (0.0, Interval(0.0, 0.0, 0.0)), "b": (0.2, Interval(0.1, 0.05, 0.2))}
    gates = gate_weights(np.array([[[0.7, 0.3], [0.6, 0.4]]]), 0.5)
    draw(tmp_path / "p.png", rises=rises, millis=timed, gates=gates, caption="c")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
