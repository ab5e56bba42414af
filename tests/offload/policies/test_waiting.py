import itertools

import numpy as np
import pytest

from smoe.offload.costs import FixedCosts, MeasuredCosts
from smoe.offload.policies.waiting import Auto, Compute, Wait
from tests.offload.policies.support import routing

# Expert 1 is chosen by three rows, 2 by two, 3 by one; 0 is resident.
SEEN = routing(4, [0, 1], [1, 2], [1, 2], [0, 3], weights=np.full((4, 2), 0.5))
RESIDENT = frozenset({0, 7})


@pytest.mark.parametrize(
    ("policy", "late", "fetch_s", "row_s", "computed"),
    [
        (Wait(), set(), 1.0, 0.1, set()),
        (Wait(), {2}, 1.0, 0.1, set()),
        (Compute(), set(), 1.0, 10.0, {1, 2, 3}),
        (Compute(), {2}, 1.0, 10.0, {1, 2, 3}),
        (Auto(), set(), 1.0, 0.1, {1, 2, 3}),
        (Auto(), set(), 1.0, 0.16, {1, 2, 3}),  # six rows end before one fetch does
        (Auto(), set(), 1.0, 0.2, {2, 3}),  # 1.0 and 0.6 together, where all six rows take 1.2
        (Auto(), set(), 1.0, 0.9, {3}),  # 2.0 and 0.9, where {2, 3} take 2.7
        (Auto(), set(), 1.0, 4.0, set()),
        (Auto(), set(), 0.0, 0.0, set()),  # nothing known: what is fetched is there the next time
        (Auto(), {2}, 1.0, 0.4, {1, 3}),  # a fetch would end behind the late one, at 2.0; four rows take 1.6
        (Auto(), {1, 2, 3}, 1.0, 0.0, set()),
    ],
)
def test_which_missing_experts_are_computed_where_they_are(policy, late, fetch_s, row_s, computed):
    decision = policy.decide(SEEN, RESIDENT, frozenset(late), FixedCosts(fetch_s, row_s))
    assert decision.compute == computed
    assert decision.ids is SEEN.ids
    assert decision.weights is SEEN.weights
    assert decision.substituted is decision.mass is None
    assert not policy.lossy
    assert not policy.needs_logits
    assert policy.computes == (not isinstance(policy, Wait))


def test_no_split_ends_earlier():
    chance = np.random.default_rng(0)
    for _ in range(200):
        seen = routing(0, *chance.permuted(np.tile(np.arange(6), (5, 1)), axis=1)[:, :2].tolist())
        late = frozenset(chance.integers(0, 6, 1).tolist()) - {0}
        costs = FixedCosts(float(chance.random()), float(chance.random()))
        rows = {e: int((seen.ids == e).sum()) for e in range(1, 6) if e not in late and (seen.ids == e).any()}

        def ends(computed, rows=rows, late=late, costs=costs):
            fetched = len(rows) - len(computed)
            link_s = (len(late) + fetched) * costs.fetch_s if fetched else 0.0
            return max(link_s, sum(costs.compute_s(rows[e]) for e in computed))

        chosen = Auto().decide(seen, frozenset({0}), late & frozenset(seen.ids.ravel().tolist()), costs).compute
        splits = (s for n in range(len(rows) + 1) for s in itertools.combinations(rows, n))
        if late <= frozenset(seen.ids.ravel().tolist()):
            assert ends(chosen) == pytest.approx(min(map(ends, splits)))


def test_costs_are_found_out_by_trying_and_tried_again():
    costs = MeasuredCosts()
    decide = Auto().decide
    assert decide(SEEN, RESIDENT, frozenset(), costs).compute == set()
    costs.fetched(3, 0.3)
    assert decide(SEEN, RESIDENT, frozenset(), costs).compute == {1, 2, 3}
    costs.computed(3, 6, 60.0)
    assert decide(SEEN, RESIDENT, frozenset(), costs).compute == set(), "a page fault, or whatever it was"
    passes = 0
    while not decide(SEEN, RESIDENT, frozenset(), costs).compute:
        costs.fetched(3, 0.3)
        passes += 1
    assert 500 < passes < 1500
    for _ in range(30):
        costs.computed(1, 1, 0.001)
    assert costs.compute_s(1) == pytest.approx(0.001, rel=0.01)
    costs.computed(2, 80, 0.4)
    assert costs.compute_s(40) == pytest.approx(40 * 0.005)
    assert costs.compute_s(1000) == pytest.approx(1000 * 0.005), "the nearest that is known"
    assert costs.compute_s(1) == pytest.approx(0.001, rel=0.01)
