"""The same requests through the engine and through the simulator: the same counts, exactly.

A trace is recorded from the built-in model with every expert resident. Then, for each combination of policies and
each capacity, the engine answers the requests again, from a store that completes its reads at once, and the simulator
replays the trace.
"""

from collections.abc import Sequence

import numpy as np
import pytest

from smoe.core.config import EngineConfig
from smoe.core.route_trace import RouteTrace, read_route_trace
from smoe.core.stats import ExpertStats
from smoe.engine.build import build_core, build_runner
from smoe.engine.core import EngineCore
from smoe.engine.model_facts import planned_model_info
from smoe.engine.plan import compute_dtype, plan_memory
from smoe.engine.runner import Runner
from smoe.models.decoder import Decoder
from smoe.models.kv import KVCache
from smoe.models.loading import open_checkpoint
from smoe.offload.bank import OffloadedBank
from smoe.offload.costs import FixedCosts
from smoe.offload.host import HostMemory
from smoe.offload.host_store import fill_all
from smoe.offload.policies.catalog import Geometry
from smoe.offload.policies.spec import parse_policies
from smoe.offload.shelf import Shelf
from smoe.offload.store import Read
from smoe.offload.store_stats import StoreStats
from smoe.sim.simulate import simulate
from tests.engine.collect import drain, request

PROMPTS = ([5, 900, 17, 2040, 33, 8, 71], [1500, 4], [77, 3001, 12, 9, 640, 2222, 31, 18, 700, 6, 11])
TOKENS = 14
SLOTS = (1, 3, 8, 20, 64)
"""A layer: one at a time; fewer than the top-8; just those; some; all."""
POLICIES = (
    "evict=lru",
    "evict=fifo",
    "evict=random",
    "evict=lfru",
    "evict=frequency:halve=7",
    "evict=utility:mass",
    "evict=utility:adaptive",
    "evict=utility:adaptive,prefetch=utility",
    "evict=lru:no-touch,prefetch=gate",
    "evict=random,prefetch=gate:threshold=0.4",
    "evict=lfu,prefetch=follow",
    "evict=utility,prefetch=token:width=5",
    "evict=least-stale:cyclic,prefetch=gate:threshold=0.2",
    "evict=least-stale:fifo,prefetch=gate",
    "evict=least-stale:layer,prefetch=follow:threshold=0.1",
    "evict=least-stale:four-tier,prefetch=gate:width=3",
)
IN_PLACE = (
    "evict=lru,miss=cpu,admit=background:beta=0.2",
    "evict=utility:mass,prefetch=gate:width=4,miss=cpu,admit=background:beta=0.3",
    "evict=least-stale,prefetch=follow,miss=cpu,admit=always",
    "evict=lfu,miss=auto",
    "evict=utility:adaptive,prefetch=utility,miss=cpu",
    "evict=utility:adaptive:makespan,prefetch=utility,miss=auto",
    "evict=lru,prefetch=gate:threshold=0.3,miss=auto,admit=always",
)
COSTS = FixedCosts(fetch_s=1.0, row_s=0.4)
COUNTS = (
    "hits",
    "late",
    "cold_misses",
    "collision_misses",
    "compulsory_misses",
    "computed_in_place",
    "computed_in_place_rows",
    "prefetched",
    "prefetch_used",
    "wasted",
    "admitted",
    "evictions",
)
CONFIG = EngineConfig(dtype="float32", max_model_len=64, max_num_seqs=1, threads=1)


class InstantStore:
    """Reads are complete when `submit` returns."""

    def __init__(self) -> None:
        self._files: dict[str, np.memmap] = {}  # type: ignore[type-arg]
        self._reads = 0

    def submit(self, read: Read) -> None:
        for segment in read.layout.segments:
            path = segment.path
            if path not in self._files:
                self._files[path] = np.memmap(path, dtype=np.uint8, mode="r")
            part = self._files[path][segment.file_offset : segment.file_offset + segment.needed]
            read.memory[segment.slot_offset : segment.slot_offset + segment.needed] = part
        self._reads += 1
        read.done(read)

    def stats(self) -> StoreStats:
        return StoreStats(
            reads=self._reads, bytes_read=0, retries=0, failures=0, busy_s=0.0, direct_files=(), buffered_files=()
        )

    def close(self) -> None:
        self._files.clear()


class Offloaded:
    """The engine on the built-in model, its parameters loaded once."""

    def __init__(self) -> None:
        self._checkpoint = open_checkpoint(CONFIG.model)
        self._dtype = compute_dtype(self._checkpoint.spec, CONFIG)
        self._params = self._checkpoint.params(dtype=self._dtype, device="cpu")
        self._shelf = Shelf(self._checkpoint.spec, self._checkpoint.expert_source, self._dtype)
        self._place = HostMemory(self._shelf, self._shelf.num_experts)
        fill_all(self._shelf, self._place, InstantStore())

    def stats(
        self, policy: str, slots_a_layer: int, *, seed: int, shared: bool = False, pause_share: float | None = None
    ) -> ExpertStats:
        spec = self._checkpoint.spec
        info = planned_model_info(self._checkpoint, plan_memory(self._checkpoint, CONFIG), None)
        geometry = Geometry(layers=info.moe_layers, num_experts=info.num_experts, top_k=info.top_k)
        policies = parse_policies(policy).build(geometry, seed=seed)
        num_slots = slots_a_layer * len(info.moe_layers)
        floor = 1 if shared else slots_a_layer
        bank = OffloadedBank(
            self._shelf,
            InstantStore(),
            policies,
            num_slots=num_slots,
            floor=floor,
            pause_share=pause_share,
            in_place=self._place,
            costs=COSTS,
        )
        decoder = Decoder(spec, self._params, bank, dtype=self._dtype)
        kv = KVCache(spec, num_rows=64, num_states=1, dtype=self._dtype, device="cpu")
        core = build_core(CONFIG, Runner(decoder, kv, bank, info))
        try:
            answer(core)
            return bank.stats()
        finally:
            core.executor.shutdown()


def answer(core: EngineCore) -> list[list[int]]:
    """One request after the other, so that each forward is of one sequence."""
    answers = []
    for number, prompt in enumerate(PROMPTS):
        core.add([request(str(number), prompt, max_tokens=TOKENS, ignore_eos=True)])
        answers.append(drain(core)[str(number)].token_ids)
    return answers


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> RouteTrace:
    path = tmp_path_factory.mktemp("trace") / "routes.safetensors"
    config = EngineConfig(
        dtype="float32",
        max_model_len=64,
        max_num_seqs=1,
        threads=1,
        record_routes=str(path),
        record_logits=True,
        record_lookahead=True,
    )
    core = build_core(config, build_runner(config))
    answer(core)
    core.executor.shutdown()
    return read_route_trace(path)


@pytest.fixture(scope="module")
def engine() -> Offloaded:
    return Offloaded()


def counts(stats: ExpertStats, names: Sequence[str] = COUNTS) -> dict[str, int]:
    return {name: getattr(stats, name) for name in names}


@pytest.mark.parametrize("slots", SLOTS)
@pytest.mark.parametrize("policy", POLICIES)
def test_engine_and_simulator_count_alike(engine: Offloaded, trace: RouteTrace, policy: str, slots: int) -> None:
    live = engine.stats(policy, slots, seed=3)
    simulated = simulate(trace, policy, str(slots), seed=3)
    assert counts(simulated.experts) == counts(live)
    assert live.hits + live.late + live.misses == simulated.accesses
    if slots < 64:
        assert live.evictions > 0
    if "prefetch" in policy and slots < 64:
        assert live.prefetched > 0


@pytest.mark.parametrize("slots", [1, 8, 20])
@pytest.mark.parametrize("policy", IN_PLACE)
def test_they_compute_in_place_alike(engine: Offloaded, trace: RouteTrace, policy: str, slots: int) -> None:
    live = engine.stats(policy, slots, seed=3)
    simulated = simulate(trace, policy, str(slots), costs=COSTS, seed=3)
    assert counts(simulated.experts) == counts(live)
    assert live.hits + live.late + live.misses == simulated.accesses
    assert live.hits > 0
    assert 0 < live.computed_in_place <= live.late + live.misses
    if "cpu" in policy:
        assert live.computed_in_place == live.late + live.misses
        assert (live.admitted > 0) == ("background" in policy)


@pytest.mark.parametrize("policy", ["evict=least-stale:cyclic,prefetch=gate", "evict=lru:no-touch,prefetch=follow"])
def test_they_count_alike_when_layers_share_the_slots(engine: Offloaded, trace: RouteTrace, policy: str) -> None:
    live = engine.stats(policy, 6, seed=3, shared=True)
    assert counts(simulate(trace, policy, "6", pool="shared", seed=3).experts) == counts(live)
    assert live.wasted > 0


def test_they_pause_prefetching_alike(engine: Offloaded, trace: RouteTrace) -> None:
    live = engine.stats("evict=fifo,prefetch=gate:width=24", 9, seed=3, pause_share=0.05)
    simulated = simulate(trace, "evict=fifo,prefetch=gate:width=24", "9", seed=3, pause_share=0.05)
    assert counts(simulated.experts) == counts(live)
    assert live.prefetch_pauses > 0
    assert simulated.experts.prefetch_pauses == live.prefetch_pauses


def test_the_trace_looks_ahead_as_the_engine_does(trace: RouteTrace) -> None:
    assert trace.lookahead_logits is not None
    assert trace.router_logits is not None
    assert (trace.lookahead_logits[-1] == 0).all()
    k = trace.top_k
    guesses = np.argsort(-trace.lookahead_logits[:-1].astype(np.float32), axis=-1)[..., :k]
    found = (guesses[..., :, None] == trace.expert_ids[1:][..., None, :]).any(-1)
    assert found.mean() > 2 * k / trace.num_experts
