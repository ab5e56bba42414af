"""Windows: cut by hand, timed by hand, and counted as the bank of an engine counts them."""

import numpy as np
import pytest
import torch

from smoe.core.draft import TIMINGS
from smoe.core.errors import ConfigError
from smoe.core.link_model import LinkModel
from smoe.models.bank import RoutedRows
from smoe.offload.policies.draft_plan import PlanRule
from smoe.offload.window import make_window
from smoe.sim.compute import ComputeModel
from smoe.sim.drafts import SimDraft, windows
from smoe.sim.simulate import simulate
from smoe.workload.routes import synthetic_routes
from tests.offload.stores import InstantStore
from tests.offload.support import ExpertFiles
from tests.sim.test_parity import counts
from tests.sim.test_simulate import one_layer

LAYERS, EXPERTS, TOP_K = 3, 11, 3


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return ExpertFiles(tmp_path_factory.mktemp("experts"), num_experts=EXPERTS)


@pytest.fixture(scope="module")
def trace(files):
    routes = synthetic_routes(num_layers=LAYERS, num_experts=EXPERTS, top_k=TOP_K, tokens=120, seed=5)
    return type(routes)(
        **{name: getattr(routes, name) for name in routes.__dataclass_fields__} | {"layers": files.moe_layers}
    )


def live(files, trace, draft, policy, slots, seed):
    """The windows of the simulator, verified by an offloaded bank over a store without delay."""
    bank = files.offloaded(
        torch.float32,
        slots,
        policies=policy,
        over=InstantStore(),
        plan_order=draft.order,
        max_planned=draft.max_planned,
        rolling=draft.rolling,
    )
    window = make_window(draft.timing, bank, trace.layers, EXPERTS, draft.rule)
    for cut in windows(trace, "decode", draft, seed):
        if cut.drafted:
            window.begin(cut.drafted)
            for step in range(cut.drafted):
                for place, layer in enumerate(trace.layers):
                    window.routed(layer, cut.drafted_LSK[place, step : step + 1])
                window.after_step(draft.step_s)
            window.before_verify()
        bank.begin_forward(torch.zeros(cut.rows, dtype=torch.int64))
        for place, layer in enumerate(trace.layers):
            ids = trace.expert_ids[place, cut.first : cut.first + cut.rows].astype(np.int32)
            x_TD, weights_TK = torch.zeros(cut.rows, files.hidden), torch.full(ids.shape, 1 / TOP_K)
            bank.apply(RoutedRows(layer, x_TD, torch.from_numpy(ids), weights_TK), x_TD)
            bank.check_integrity()
    bank.poll()
    stats = bank.stats()
    bank.close()
    return stats


@pytest.mark.parametrize("timing", TIMINGS)
@pytest.mark.parametrize(
    "policy", ["evict=lru", "evict=utility", "evict=least-stale", "evict=lru:no-touch,prefetch=follow"]
)
def test_engine_and_simulator_count_alike(files, trace, timing, policy):
    for slots, rule, rolling in ((2, None, 1), (4, PlanRule(scale="demand"), None), (8, PlanRule(sticky=True), 2)):
        draft = SimDraft(tokens=6, accept=0.8, recall=0.8, step_s=1.0, timing=timing, rule=rule, rolling=rolling)
        simulated = simulate(trace, policy, str(slots), mode="decode", draft=draft, seed=3)
        found = live(files, trace, draft, policy, slots, 3)
        assert counts(simulated.experts) == counts(found)
        assert simulated.experts.cancelled == found.cancelled
        assert (found.prefetched > 0) == (timing != "none" or "prefetch" in policy)


@pytest.mark.parametrize(("accept", "tokens"), [(1.0, [4, 4, 2]), (0.0, [1] * 10)])
def test_windows_of_a_sequence(accept, tokens):
    trace = one_layer(*[(row % 8, (row + 1) % 8) for row in range(10)])
    cut = list(windows(trace, "decode", SimDraft(tokens=3, accept=accept), 0))
    assert [window.tokens for window in cut] == tokens
    assert sum(window.tokens for window in cut) == trace.num_tokens
    assert cut[0].rows == 4
    assert cut[-1].rows == (2 if accept else 1), "never beyond the sequence"
    assert (cut[0].drafted_LSK[0] == trace.expert_ids[0, :3]).all()


def test_a_prompt_is_no_window():
    trace = one_layer(*[(0, 1)] * 8, phase=(0, 0, 0, 1, 1, 1, 1, 1))
    cut = list(windows(trace, "recorded", SimDraft(tokens=4), 0))
    assert [(window.first, window.rows, window.drafted) for window in cut] == [(0, 3, 0), (3, 5, 4)]


@pytest.mark.parametrize("recall", [0.0, 0.25, 0.5, 0.75, 1.0])
def test_mistakes_of_the_draft(recall):
    trace = one_layer(*[(0, 1)] * 2000, experts=64)
    (cut,) = windows(trace, "decode", SimDraft(tokens=1999, recall=recall), 1)
    right = (cut.drafted_LSK == trace.expert_ids[:, :1999]).mean()
    assert right == pytest.approx(recall, abs=0.03)


def test_what_is_kept_does_not_depend_on_the_recall():
    trace = one_layer(*[(row % 8, (row + 1) % 8) for row in range(60)])
    runs = [
        [window.kept for window in windows(trace, "decode", SimDraft(tokens=4, accept=0.6, recall=recall), 5)]
        for recall in (1.0, 0.7, 0.1)
    ]
    assert runs[0] == runs[1] == runs[2]
    assert len(set(runs[0])) > 2


def test_time_by_hand():
    """Rows (0 1) (2 3) (0 1): two tokens drafted in 3 s each; 1 s an expert; 0.5 s a layer; 0.25 s a row."""
    trace, link, compute = one_layer((0, 1), (2, 3), (0, 1)), LinkModel(100.0), ComputeModel(0.5, 0.25, None, 0.125)
    options = {"link": link, "compute": compute, "expert_bytes": 100, "mode": "decode"}
    late = simulate(trace, "evict=lru", "8", draft=SimDraft(tokens=2, step_s=3.0, timing="none"), **options)
    # 6 drafted, 6.5; arrivals 7.5 .. 10.5, of 0 and 1 two rows each; the last computed after its arrival: 0.25
    assert late.seconds == pytest.approx(10.75)
    early = simulate(trace, "evict=lru", "8", draft=SimDraft(tokens=2, step_s=3.0, timing="early"), **options)
    # 0 and 1 arrive at 4 and 5, in the second step; 2 and 3 at 7.5 and 8.5
    assert early.seconds == pytest.approx(8.75)
    assert early.draft is not None
    assert (early.draft.asked, early.draft.foretold, early.draft.hits, early.draft.kept) == (4, 4, 2, 2)


@pytest.mark.parametrize("draft", [None, SimDraft(tokens=1, timing="none")])
def test_time_of_prompts_apart(draft):
    """Rows (0 1) (2 3) together: 0.5 s, arrivals 1.5 .. 4.5, 0.25 s for the last; then 0 and 1 are there."""
    trace = one_layer((0, 1), (2, 3), (0, 1), phase=(0, 0, 1))
    options = {"link": LinkModel(100.0), "compute": ComputeModel(0.5, 0.25), "expert_bytes": 100}
    found = simulate(trace, "evict=lru", "8", draft=draft, **options)
    assert (found.prompt_s, found.seconds) == pytest.approx((4.75, 5.75))
    assert simulate(trace, "evict=lru", "8", mode="decode", draft=draft, **options).prompt_s == 0.0
    assert simulate(trace, "evict=lru", "8", draft=draft).prompt_s is None


def test_the_draft_takes_its_memory():
    trace = synthetic_routes(num_layers=2, num_experts=10, top_k=2, tokens=30, seed=1)
    assert simulate(trace, "", "50%", mode="decode", draft=SimDraft(tokens=2, bytes_share=0.25)).num_slots == 5
    with pytest.raises(ConfigError, match="draft_bytes_share"):
        simulate(trace, "", "50%", mode="decode", draft=SimDraft(tokens=2, bytes_share=0.45))


@pytest.mark.parametrize(
    "wrong", [{"tokens": 0}, {"accept": 1.1}, {"recall": -0.1}, {"step_s": -1}, {"timing": "soon"}]
)
def test_refusals(wrong):
    with pytest.raises(ConfigError):
        SimDraft(**{"tokens": 4} | wrong)
    trace = one_layer((0, 1), (1, 2))
    for options in ({"mode": "prefill"}, {"mode": "decode", "batch": 2}):
        with pytest.raises(ConfigError, match="draft"):
            simulate(trace, "", "4", draft=SimDraft(tokens=2), **options)
