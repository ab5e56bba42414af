"""Placements of the built-in model for the benchmark, and the text that they were not made from."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from smoe.bench.comm.cases import GROUPED, VANILLA, Span, Work
from smoe.bench.regroup.builtin import record
from smoe.clustering.catalog import make_solver
from smoe.clustering.layer_job import LayerRules, RouteLayers, solve_layer
from smoe.clustering.problem import Balance
from smoe.clustering.tables import build_tables
from smoe.core.placement import Array, Placement, RoutingTables
from smoe.core.placement_build import contiguous, even_slots, from_expert_device
from smoe.core.route_edit import split
from smoe.core.route_trace import RouteTrace

_FIT = 0.75
_BALANCE = Balance(theta=0.001, max_load=1.1)
CONTEXT = 16
"""Tokens before the one that a decode step adds: attention is not what is measured."""


@dataclass(frozen=True, slots=True, eq=False)
class Routes:
    """`fit` is what placements are made from, `heldout` what steps are cut from. `embedding` [V, D]."""

    fit: RouteTrace
    heldout: RouteTrace
    embedding: Array

    @classmethod
    def recorded(cls, texts: int, seed: int) -> "Routes":
        """From `texts` windows of each domain."""
        trace, embedding = record(texts)
        fit, heldout = split(trace, _FIT, seed=seed)
        return cls(fit, heldout, embedding)

    def placements(self, devices: int, fingerprint: str, seed: int) -> dict[str, Placement]:
        """`fingerprint` is that of the model which the placements are used for. One device has nothing to group."""
        fit = self.fit
        plain = contiguous(fingerprint=fingerprint, num_experts=fit.num_experts, layers=fit.layers, num_devices=devices)
        if devices == 1:
            return {VANILLA: plain}
        rules = LayerRules(make_solver("cross-entropy"), _BALANCE, even_slots(fit.num_experts, devices), seed)
        grouped = np.stack(
            [solve_layer(layer, rules).expert_device for layer in RouteLayers(fit, range(len(fit.layers)))]
        )
        made = {
            VANILLA: plain,
            GROUPED: from_expert_device(grouped, rules.slots_of_device, fingerprint=fingerprint, layers=fit.layers),
        }
        return {name: replace(placement, tables=self._tables(placement)) for name, placement in made.items()}

    def _tables(self, placement: Placement) -> RoutingTables:
        return build_tables(self.fit, placement.on_device, vocab_size=len(self.embedding), embedding=self.embedding)

    def windows(self, seed: int) -> list[tuple[int, ...]]:
        """Held-out sequences, the domains mixed."""
        starts = self.heldout.sequence_start
        order = np.random.default_rng(seed).permutation(self.heldout.num_sequences).tolist()
        return [tuple(self.heldout.token_ids[starts[s] : starts[s + 1]].tolist()) for s in order]


def prefill(windows: Sequence[tuple[int, ...]], rows: int) -> Work:
    """Whole windows, as many as make `rows`."""
    spans: list[Span] = []
    left = rows
    for window in windows:
        taken = window[:left]
        spans.append((taken, rows - left, 0, 0))
        left -= len(taken)
        if not left:
            return Work("prefill", tuple(spans))
    raise ValueError(f"{rows} rows of {sum(map(len, windows))} held-out tokens")


def decode(windows: Sequence[tuple[int, ...]], rows: int, *, first_row: int) -> tuple[Work, Work]:
    """The contexts of `rows` sequences, which fill the cache from `first_row` on, and their next tokens. Fewer
    sequences are the first ones of more."""
    step = CONTEXT + 1
    pieces = [window[at : at + step] for at in range(0, len(windows[0]) - step, step) for window in windows][:rows]
    assert len(pieces) == rows, f"{rows} sequences of {step} held-out tokens"
    before = tuple((piece[:CONTEXT], first_row + number * step, 0, 0) for number, piece in enumerate(pieces))
    after = tuple((piece[CONTEXT:], first_row + number * step, CONTEXT, 0) for number, piece in enumerate(pieces))
    return Work("prefill", before), Work("decode", after)
