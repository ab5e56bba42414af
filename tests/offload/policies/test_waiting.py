import numpy as np
import pytest

from smoe.offload.policies.waiting import Auto, Compute, Wait
from tests.offload.policies.support import routing

# Expert 1 is chosen by three rows, 2 by two, 3 by one; 0 is resident.
SEEN = routing(4, [0, 1], [1, 2], [1, 2], [0, 3], weights=np.full((4, 2), 0.5))


@pytest.mark.parametrize(
    ("policy", "fetch_s", "compute_s", "computed"),
    [
        (Wait(), 1.0, 0.1, set()),
        (Compute(), 1.0, 10.0, {1, 2, 3}),
        (Auto(), 1.0, 0.1, {1, 2, 3}),
        (Auto(), 1.0, 0.5, {3}),  # two rows would cost as much as the fetch
        (Auto(), 1.0, 0.4, {2, 3}),
        (Auto(), 1.0, 1.0, set()),
    ],
)
def test_which_missing_experts_are_computed_where_they_are(policy, fetch_s, compute_s, computed):
    decision = policy.decide(SEEN, frozenset({0, 7}), fetch_s, compute_s)
    assert decision.compute == computed
    assert decision.ids is SEEN.ids
    assert decision.weights is SEEN.weights
    assert decision.substituted is decision.mass is None
    assert not policy.lossy
    assert not policy.needs_logits
