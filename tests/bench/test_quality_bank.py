"""The emulated bank against the offloaded one, and against no policy at all."""

import functools

import numpy as np
import pytest
import torch

from smoe.bench.quality.bank import EmulatedBank
from smoe.bench.quality.compare import compare
from smoe.bench.quality.scoring import Scorer
from smoe.bench.quality.setting import Group, Model
from smoe.bench.quality.texts import Text
from smoe.core.errors import ConfigError
from smoe.core.stats import ExpertStats
from smoe.models.decoder import Decoder
from smoe.models.loading import open_checkpoint
from smoe.offload.bank import OffloadedBank
from smoe.offload.policies.protocols import Routing
from smoe.offload.policies.spec import parse_policies
from smoe.offload.shelf import Shelf
from tests.offload.stores import InstantStore

TEXT = tuple(np.random.default_rng(5).integers(1, 4096, 24).tolist())
LOSSY = (
    "quality-first",
    "speed-first",
    "speed-first,admit=always",
    "quality-first,miss=substitute:own",
    "evict=frequency,miss=substitute:all,admit=background:beta=0.1",
    "evict=lru,prefetch=gate:width=4,miss=substitute,admit=background:beta=0.2",
)
LOSSLESS = ("evict=lru", "evict=frequency,prefetch=gate:width=4")
COUNTS = ("hits", "misses", "prefetched", "prefetch_used", "wasted", "admitted", "evictions", "substituted")


@functools.cache
def model(expert_memory: str) -> Model:
    return Model(open_checkpoint("builtin"), expert_memory)


def emulated(policy: str, expert_memory: str) -> tuple[np.ndarray, ExpertStats]:
    cache = model(expert_memory).cache(policy)
    nats = model(expert_memory).scorer(cache).nats(TEXT)
    cache.check_integrity()
    return nats, cache.stats()


def offloaded(policy: str, slots_a_layer: int) -> tuple[np.ndarray, ExpertStats]:
    checkpoint = open_checkpoint("builtin")
    spec = checkpoint.spec
    policies = parse_policies(policy).build(model("1").geometry)
    shelf = Shelf(spec, checkpoint.expert_source, torch.float32)
    num_slots = slots_a_layer * len(spec.moe_layers)
    bank = OffloadedBank(shelf, InstantStore(), policies, num_slots=num_slots, floor=slots_a_layer, poison=True)
    decoder = Decoder(spec, checkpoint.params(dtype=torch.float32), bank, dtype=torch.float32)
    nats = Scorer(decoder, max_tokens=len(TEXT)).nats(TEXT)
    bank.check_integrity()
    return nats, bank.stats()


@pytest.mark.parametrize("slots_a_layer", [3, 16])
@pytest.mark.parametrize("policy", [*LOSSY, *LOSSLESS])
def test_bits_and_counts_are_those_of_the_offloaded_bank(policy: str, slots_a_layer: int) -> None:
    (mine, counts), (theirs, their_counts) = emulated(policy, str(slots_a_layer)), offloaded(policy, slots_a_layer)
    assert np.array_equal(mine, theirs)
    for name in COUNTS:
        assert getattr(counts, name) == getattr(their_counts, name), name
    assert counts.substituted_mass == pytest.approx(their_counts.substituted_mass)
    assert (counts.substituted > 0) == (policy in LOSSY)


@pytest.mark.parametrize("policy", LOSSLESS)
def test_lossless_policies_change_no_bit(policy: str) -> None:
    nats, counts = emulated(policy, "12.5%")
    assert np.array_equal(nats, model("12.5%").scorer().nats(TEXT))
    assert counts.misses > 0


@pytest.mark.parametrize("policy", LOSSY[:2])
def test_a_lossy_policy_with_every_expert_resident_changes_no_bit(policy: str) -> None:
    cache = model("100%").cache(policy)
    logits = np.zeros((1, 64), np.float32)
    for layer in range(6):
        for expert in range(64):  # alone it is the first choice, which is waited for
            ids, weights = np.array([[expert]], np.int32), np.ones((1, 1), np.float32)
            cache.route(Routing(layer=layer, ids=ids, weights=weights, logits=logits))
    before = cache.tally()
    assert before.waited == 6 * 64
    assert np.array_equal(model("100%").scorer(cache).nats(TEXT), model("100%").scorer().nats(TEXT))
    assert cache.tally().since(before).waited == 0


def test_rows_report_what_was_substituted_in_the_last_forward() -> None:
    setting = model("4")
    bank = EmulatedBank(setting._resident, setting.cache("speed-first"))
    decoder = Decoder(setting.checkpoint.spec, setting._params, bank, dtype=torch.float32)
    scorer = Scorer(decoder, max_tokens=len(TEXT))
    scorer.nats(TEXT[:-1])
    before = bank.cache.tally()
    scorer.nats(TEXT[-1:])
    found, tally = bank.substitutions(), bank.cache.tally().since(before)
    assert found is not None
    assert found.slots_T.tolist() == [tally.substituted]
    assert found.mass_T == pytest.approx([tally.mass])


def test_estimate_of_a_lossless_policy_is_what_it_does() -> None:
    group = Group(
        name="prose", warm_up=Text(domain="prose", token_ids=TEXT[:8]), texts=[Text(domain="prose", token_ids=TEXT[8:])]
    )
    outcome = compare(model("12.5%"), "evict=lru", model("12.5%").reference(group))
    assert outcome.estimate == outcome.tally
    assert outcome.tally.forwards == len(TEXT) - 8
    assert outcome.tally.waited > 0
    rise = outcome.rise()
    assert (rise.low, rise.value, rise.high) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("memory", ["all", "auto"])
def test_memory_that_misses_nothing_is_refused(memory: str) -> None:
    with pytest.raises(ConfigError, match=f"expert_memory: '{memory}'"):
        Model(open_checkpoint("builtin"), memory)
