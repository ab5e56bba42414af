import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smoe.offload.costs import FixedCosts
from smoe.offload.policies.spec import Geometry, parse_policies
from smoe.offload.policies.substitute import Rule, Substitute
from tests.offload.policies.support import routing

GATE, FREE = Rule(0.15), FixedCosts()
# Router logits of eight experts; chosen are 0, 1, 2, 3. Outside, 5 > 6 > 4 = 7.
LOGITS = [9.0, 8.0, 7.0, 6.0, 1.0, 5.0, 4.0, 1.0]
CHOSEN = [0, 1, 2, 3]
WEIGHTS = [0.5, 0.25, 0.15, 0.1]


def decide(policy, resident, *, ids=CHOSEN, weights=WEIGHTS, logits=LOGITS):
    return policy.decide(routing(3, ids, weights=[weights], logits=[logits]), frozenset(resident), frozenset(), FREE)


def test_heavy_misses_are_waited_for_and_light_ones_substituted():
    # Missing 1, 2, 3 of weights 0.25, 0.15, 0.1: at 0.15 or more wait, so only 3 is replaced, by resident 6 (not 4).
    decision = decide(Substitute(GATE), {0, 4, 6})
    assert decision.ids.tolist() == [[0, 1, 2, 6]]
    assert decision.weights.tolist() == [pytest.approx(WEIGHTS)]
    assert decision.substituted.tolist() == [1]
    assert decision.mass.tolist() == [pytest.approx(0.1)]
    assert decision.compute == frozenset()


def test_the_first_choice_is_waited_for_however_light():
    flat = [0.14] * 4
    decision = decide(Substitute(Rule(0.3)), {4, 5, 6, 7}, weights=flat)
    assert decision.ids.tolist() == [[0, 5, 6, 4]]  # best first; of equal logits the lower expert
    assert decision.mass.tolist() == [pytest.approx(0.75)]


def test_the_rules_differ():
    resident = {4, 5, 6, 7}
    assert decide(Substitute(GATE), resident).ids.tolist() == [[0, 1, 2, 5]]
    assert decide(Substitute(Rule(math.inf)), resident).ids.tolist() == [[0, 5, 6, 4]]
    decision = decide(Substitute(Rule(math.inf, first_too=True)), resident)
    assert decision.ids.tolist() == [[5, 6, 4, 7]]
    assert decision.mass.tolist() == [pytest.approx(1.0)]


def test_with_everything_resident_nothing_changes():
    decision = decide(Substitute(Rule(math.inf, first_too=True)), range(8))
    assert decision.ids.tolist() == [CHOSEN]
    assert decision.substituted is decision.mass is None


def test_without_a_candidate_the_miss_is_waited_for():
    policy = Substitute(Rule(math.inf))
    assert decide(policy, {0}).ids.tolist() == [CHOSEN]
    assert decide(policy, {0, 7}).ids.tolist() == [[0, 7, 2, 3]]
    assert decide(policy, {0, 7}).substituted.tolist() == [1]


def test_a_resident_choice_of_the_row_is_no_substitute():
    assert decide(Substitute(GATE), {0, 1, 2, 7}).ids.tolist() == [[0, 1, 2, 7]]


def test_weights_are_compared_as_shares_of_their_row():
    # A router that does not normalise: the same shares, a quarter of the weights.
    decision = decide(Substitute(GATE), {0, 4, 6}, weights=[w / 4 for w in WEIGHTS])
    assert decision.ids.tolist() == [[0, 1, 2, 6]]
    assert decision.weights.tolist() == [pytest.approx([w / 4 for w in WEIGHTS])]
    assert decision.mass.tolist() == [pytest.approx(0.1)]


def test_own_weights_are_the_routers_over_what_is_executed():
    # Executed 0, 1, 2, 6 of logits 9, 8, 7, 4, scaled to the sum 0.25 of the row's weights.
    decision = decide(Substitute(GATE, own_weight=True), {0, 4, 6}, weights=[w / 4 for w in WEIGHTS])
    shares = np.exp([9.0, 8.0, 7.0, 4.0])
    assert decision.weights.tolist() == [pytest.approx(0.25 * shares / shares.sum())]
    assert decision.weights.dtype == np.float32
    assert decision.mass.tolist() == [pytest.approx(0.1)]  # of the weights replaced, whatever takes their place


def test_own_weights_leave_rows_without_substitute_alone():
    seen = routing(3, CHOSEN, CHOSEN, weights=[WEIGHTS, [0.25, 0.25, 0.25, 0.25]], logits=[LOGITS, LOGITS])
    decision = Substitute(GATE, own_weight=True).decide(seen, frozenset({0, 1, 2, 6}), frozenset(), FREE)
    # Row 1 waits for 3 (0.25), so it is there for row 0 as well: nothing is substituted.
    assert decision.ids.tolist() == [CHOSEN, CHOSEN]
    seen = routing(3, CHOSEN, [0, 1, 2, 6], weights=[WEIGHTS, [0.25] * 4], logits=[LOGITS, LOGITS])
    decision = Substitute(GATE, own_weight=True).decide(seen, frozenset({0, 1, 2, 5, 6}), frozenset(), FREE)
    assert decision.ids.tolist() == [[0, 1, 2, 5], [0, 1, 2, 6]]
    assert decision.weights[1].tolist() == [0.25] * 4
    assert decision.weights[0].tolist() != pytest.approx(WEIGHTS)
    assert decision.substituted.tolist() == [1, 0]


def test_what_one_row_waits_for_no_other_substitutes():
    # Row 1 alone replaces 3 by 4. Row 0 would replace 3 too and has no candidate: it waits, and 3 is there for row 1.
    policy, resident = Substitute(GATE), frozenset({0, 1, 4})
    alone = policy.decide(routing(3, CHOSEN, weights=[WEIGHTS], logits=[LOGITS]), resident, frozenset(), FREE)
    assert alone.ids.tolist() == [[0, 1, 2, 4]]
    seen = routing(3, [0, 1, 4, 3], CHOSEN, weights=[WEIGHTS] * 2, logits=[LOGITS] * 2)
    decision = policy.decide(seen, resident, frozenset(), FREE)
    assert decision.ids.tolist() == [[0, 1, 4, 3], CHOSEN]
    assert decision.substituted is None


def test_rows_that_are_not_finite_wait():
    nan = [math.nan] * 4
    assert decide(Substitute(Rule(math.inf)), {0, 5}, weights=nan).ids.tolist() == [CHOSEN]
    seen = routing(3, CHOSEN, [0, 1, 2, 7], weights=[nan, WEIGHTS], logits=[[math.nan] * 8, LOGITS])
    decision = Substitute(Rule(math.inf)).decide(seen, frozenset({0, 5}), frozenset(), FREE)
    # Row 0 waits for 1, 2, 3: row 1 finds 1 and 2 there, and replaces 7.
    assert decision.ids.tolist() == [CHOSEN, [0, 1, 2, 5]]
    assert decision.substituted.tolist() == [0, 1]
    assert np.isnan(decision.weights[0]).all()


@pytest.mark.parametrize(("top_k", "heavy"), [(10, 0.15), (8, 0.1875), (4, 0.375)])
def test_the_default_threshold_is_one_and_a_half_mean_weights(top_k, heavy):
    geometry = Geometry(layers=(0,), num_experts=8, top_k=top_k)
    policy = parse_policies("miss=substitute").build(geometry).miss
    for weight, waits in ((heavy, True), (heavy - 1e-3, False)):
        weights = [1 - weight, weight]
        seen = routing(0, [0, 1], weights=[weights], logits=[LOGITS])
        decision = policy.decide(seen, frozenset({0, 5}), frozenset(), FREE)
        assert decision.ids.tolist() == [[0, 1 if waits else 5]], weight


@st.composite
def routed(draw):
    experts, rows = draw(st.integers(2, 9)), draw(st.integers(1, 5))
    choices = draw(st.integers(1, min(4, experts)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    logits = rng.integers(0, 6, (rows, experts)).astype(np.float32)  # with ties
    ids = np.argsort(-logits, axis=1, kind="stable")[:, :choices]
    weights = np.exp(np.take_along_axis(logits, ids, axis=1))
    weights /= weights.sum(axis=1, keepdims=True) * draw(st.sampled_from([1.0, 3.0]))
    resident = frozenset(draw(st.sets(st.integers(0, experts - 1))))
    return ids.tolist(), weights.tolist(), logits.tolist(), resident


RULES = st.builds(Rule, st.sampled_from([0.1, 0.25, 0.4, math.inf]), st.booleans())


@given(routed(), RULES, st.booleans())
@settings(max_examples=300)
def test_rows_keep_distinct_experts_and_one_row_alone_is_decided_alike(case, rule, own):
    ids, weights, logits, resident = case
    policy = Substitute(rule, own_weight=own)
    together = policy.decide(routing(0, *ids, weights=weights, logits=logits), resident, frozenset(), FREE)
    waited = {e for old, new in zip(ids, together.ids.tolist(), strict=True) for e in new if e in old} - resident
    for row, new in enumerate(together.ids.tolist()):
        assert len(set(new)) == len(new)
        for slot, (before, after) in enumerate(zip(ids[row], new, strict=True)):
            if before != after:
                assert before not in resident
                assert before not in waited
                assert after in resident
                assert after not in ids[row]
                assert slot > 0 or rule.first_too
        assert together.weights[row].sum() == pytest.approx(sum(weights[row]), rel=1e-5)
    # A second row that asks for the same changes nothing, but takes the other path.
    for row in range(len(ids)):
        one, two = (
            policy.decide(
                routing(0, *[ids[row]] * n, weights=[weights[row]] * n, logits=[logits[row]] * n),
                resident,
                frozenset(),
                FREE,
            )
            for n in (1, 2)
        )
        assert one.ids[0].tolist() == two.ids[0].tolist() == two.ids[1].tolist()
        assert one.weights[0].tolist() == two.weights[0].tolist()
        if one.mass is not None:
            assert one.mass[0] == two.mass[0]
            assert (
                one.substituted[0]
                == two.substituted[0]
                == sum(a != b for a, b in zip(ids[row], one.ids[0], strict=True))
            )
