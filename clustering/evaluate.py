"""A placement and its tables judged on sequences that neither was made from.

LAR, the local activation rate, is the share of (token, expert) activations whose expert is on the token's device.
Axes: L layers, T tokens, E experts, G devices.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from smoe.clustering.batches import Aligned, align_batches, mixed_batches, place_batch, sequence_batches
from smoe.clustering.groups import group_tokens
from smoe.clustering.journey import Journey, contiguous, follow, histories
from smoe.clustering.local import device_load, expert_load, imbalance, local_counts
from smoe.clustering.lookup import Destinations, lookup
from smoe.clustering.quality import Said, TableQuality, table_quality
from smoe.clustering.tables import best_two, build_tables, seen_ids, vocab_of
from smoe.clustering.traffic import SCHEDULES, Traffic, traffic
from smoe.core.placement import RoutingTables
from smoe.core.route_trace import RouteTrace

Array = npt.NDArray[Any]

VANILLA, SLICES = "vanilla", "vanilla by sequence"
EXPERTS, TOKENS, BOTH, CHAIN, ORACLE = "experts only", "tokens only", "both", "both and chain", "oracle"
VARIANTS = (VANILLA, SLICES, EXPERTS, TOKENS, BOTH, CHAIN, ORACLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Tuples have a value a layer. `lar` by variant:

    vanilla: experts in order, tokens dealt out in turn (by sequence: whole sequences) · experts only: this placement,
    tokens in turn · tokens only: experts in order, tokens by their T · both: this placement and T · both and chain:
    T and A · oracle: this placement, every token on its best device.

    `load_imbalance`: the busiest device's activations over the mean. `token_imbalance`: the same of tokens where both
    tables send them. `needed_devices`: distinct devices that a token's experts are on. `unseen`: tokens whose id the
    fit lacks, of all. Tables: "T", "T raw" (shares as counted), "A" (without T), "T decides", "A decides".
    """

    tokens: int
    sequences: int
    unseen: float
    lar: dict[str, tuple[float, ...]]
    load_imbalance: tuple[float, ...]
    token_imbalance: tuple[float, ...]
    needed_devices: tuple[float, ...]
    tables: dict[str, TableQuality]
    aligned: tuple[Aligned, ...]
    traffic: tuple[Traffic, ...]

    @property
    def mean_lar(self) -> dict[str, float]:
        return {variant: float(np.mean(values)) for variant, values in self.lar.items()}

    def as_json(self) -> dict[str, Any]:
        return {"mean_lar": self.mean_lar, **asdict(self)}


def evaluate(
    fit: RouteTrace,
    heldout: RouteTrace,
    on_device: Array,
    slots_of_device: tuple[int, ...],
    *,
    tables: RoutingTables | None = None,
    embedding: Array | None = None,
    seed: int = 0,
) -> Evaluation:
    """`on_device` [L, E, G] bool, `tables` its own from `fit`; made here where missing. Seconds for millions of
    activations. `slots_of_device` [G] experts in order are what it is compared with."""
    vocab = vocab_of(fit, heldout) if embedding is None else None
    tables = tables or build_tables(fit, on_device, vocab_size=vocab, embedding=embedding)
    journey = follow(heldout, on_device)
    in_order = contiguous(len(fit.layers), slots_of_device)
    plain_tables = build_tables(fit, in_order, vocab_size=vocab, embedding=embedding)
    plain = follow(heldout, in_order)
    wishes = destinations(tables, heldout, journey)
    by_token = destinations(tables, heldout, journey, chain=False)
    plain_by_token = destinations(plain_tables, heldout, plain, chain=False)
    lar = vanilla_lar(heldout, journey, plain)
    for variant, where, wanted in (
        (TOKENS, plain, plain_by_token),
        (BOTH, journey, by_token),
        (CHAIN, journey, wishes),
    ):
        lar[variant] = lar_of(where, [wish.device for wish in wanted], heldout.top_k)
    lar[ORACLE] = best_local(journey, heldout.top_k)
    num_devices = on_device.shape[2]
    return Evaluation(
        tokens=heldout.num_tokens,
        sequences=heldout.num_sequences,
        unseen=float(np.mean(~np.isin(heldout.token_ids, seen_ids(fit)))),
        lar=lar,
        load_imbalance=load_imbalance(heldout, on_device),
        token_imbalance=tuple(imbalance(np.bincount(wish.device, minlength=num_devices)) for wish in wishes),
        needed_devices=tuple((journey.local > 0).sum(axis=2).mean(axis=1).tolist()),
        tables=_qualities(fit, heldout, on_device, journey, by_token, wishes),
        aligned=tuple(
            aligned
            for kind, batches in (
                ("mixed", mixed_batches(heldout, seed=seed)),
                ("one sequence", sequence_batches(heldout)),
            )
            for aligned in align_batches(kind, batches, journey, wishes, heldout.top_k)
        ),
        traffic=_traffic(heldout, on_device, in_order, wishes, seed),
    )


def destinations(
    tables: RoutingTables, trace: RouteTrace, journey: Journey, *, chain: bool = True
) -> list[Destinations]:
    """A layer's for all tokens of the trace."""
    return [
        lookup(tables, layer, trace.token_ids, *journey.before(layer), chain=chain)
        for layer in range(len(trace.layers))
    ]


def vanilla_lar(trace: RouteTrace, journey: Journey, plain: Journey) -> dict[str, tuple[float, ...]]:
    num_devices = journey.local.shape[2]
    in_turn = np.arange(trace.num_tokens) % num_devices
    sequence = np.repeat(np.arange(trace.num_sequences), np.diff(trace.sequence_start)) % num_devices
    layers = len(trace.layers)
    return {
        VANILLA: lar_of(plain, [in_turn] * layers, trace.top_k),
        SLICES: lar_of(plain, [sequence] * layers, trace.top_k),
        EXPERTS: lar_of(journey, [in_turn] * layers, trace.top_k),
    }


def lar_of(journey: Journey, at: Sequence[Array], top_k: int) -> tuple[float, ...]:
    """`at[layer]` [T] is the device of every token."""
    return tuple(float(journey.share_at(layer, device, top_k).mean()) for layer, device in enumerate(at))


def best_local(journey: Journey, top_k: int) -> tuple[float, ...]:
    """The local share with every token on its best device."""
    return tuple((journey.local.max(axis=2).mean(axis=1) / top_k).tolist())


def load_imbalance(trace: RouteTrace, on_device: Array) -> tuple[float, ...]:
    """Experts' activations by device, the busiest over the mean; replicas share evenly."""
    return tuple(
        imbalance(device_load(expert_load(ids, trace.num_experts), held))
        for ids, held in zip(trace.expert_ids, on_device, strict=True)
    )


def _qualities(
    fit: RouteTrace,
    heldout: RouteTrace,
    on_device: Array,
    journey: Journey,
    by_token: Sequence[Destinations],
    wishes: Sequence[Destinations],
) -> dict[str, TableQuality]:
    said: dict[str, list[Said]] = {"T": [], "T raw": [], "A": [], "T decides": [], "A decides": []}
    raw = _raw_shares(fit, heldout, on_device)
    chains = histories(follow(fit, on_device), fit.top_k)
    for layer, (token, both, chain) in enumerate(zip(by_token, wishes, chains, strict=True)):
        came = {"local": journey.local[layer], "majority": journey.device[layer + 2]}
        before = journey.before(layer)
        said["T"].append(Said(device=token.device, confidence=token.confidence, **came))
        said["T raw"].append(Said(device=raw[layer][0], confidence=raw[layer][1], **came))
        said["A"].append(Said(device=chain.device[before], confidence=chain.share[before], **came))
        for name, decided in (("T decides", both.by_token), ("A decides", ~both.by_token)):
            said[name].append(Said(device=both.device, confidence=both.confidence, decided=decided, **came))
    return {name: table_quality(layers, heldout.top_k) for name, layers in said.items()}


def _raw_shares(fit: RouteTrace, heldout: RouteTrace, on_device: Array) -> list[tuple[Array, Array]]:
    """A layer's (device, share) of held-out tokens by plain counts; ids never seen go by the mean."""
    groups, found = group_tokens(fit), []
    for ids, held in zip(fit.expert_ids, on_device, strict=True):
        local = local_counts(ids, held)
        mean = local.mean(axis=0, keepdims=True, dtype=np.float64) / fit.top_k
        device, _, share = (np.repeat(part, heldout.num_tokens) for part in best_two(mean))
        if groups is not None:
            counts = groups.token_sums(groups.pair_sums(local))
            best, _, shares = best_two(counts / (groups.occurrences * float(fit.top_k))[:, None])
            row = np.minimum(np.searchsorted(groups.token_ids, heldout.token_ids), len(best) - 1)
            known = groups.token_ids[row] == heldout.token_ids
            device[known], share[known] = best[row[known]], shares[row[known]]
        found.append((device, share))
    return found


def _traffic(
    trace: RouteTrace, on_device: Array, in_order: Array, wishes: Sequence[Destinations], seed: int
) -> tuple[Traffic, ...]:
    """Of mixed batches, speculative rows aligned to equal chunks; a mean over layers."""
    num_devices = on_device.shape[2]
    batches = mixed_batches(trace, seed=seed)
    rows = np.concatenate(batches)
    in_turn = np.concatenate([np.arange(len(batch)) % num_devices for batch in batches])
    found = []
    for schedule in SCHEDULES:
        layers = []
        for layer, wish in enumerate(wishes):
            speculative = schedule == "speculative"
            at = np.concatenate([place_batch(wish, b, num_devices, 1.0) for b in batches]) if speculative else in_turn
            held = on_device[layer] if speculative else in_order[layer]
            layers.append(traffic(schedule, trace.expert_ids[layer, rows], held, at))
        mean = {name: float(np.mean([getattr(each, name) for each in layers])) for name in _TRAFFIC_MEANS}
        found.append(Traffic(schedule=schedule, **mean))
    return tuple(found)


_TRAFFIC_MEANS = ("lar", "counted", "formula", "deduplicated")
