"""A bank that also tells what each layer's input says about the next layer's routing."""

from collections.abc import Callable

import torch

from smoe.core.stats import ExpertStats
from smoe.models.bank import ExpertBank, Lookahead, RoutedRows, Substitutions

LookaheadSink = Callable[[int, torch.Tensor], None]
"""Called with (decoder layer, logits_TE f16 of the MoE layer after it)."""


class LookaheadBank:
    """`bank`, with `last_layer` its last MoE layer; every other one's look-ahead goes to `sink` before it computes."""

    def __init__(self, bank: ExpertBank, sink: LookaheadSink, *, last_layer: int) -> None:
        self._bank, self._sink, self._last_layer = bank, sink, last_layer
        self._lookahead: Lookahead | None = None

    @property
    def needs_logits(self) -> bool:
        return self._bank.needs_logits

    def use_lookahead(self, lookahead: Lookahead) -> None:
        self._lookahead = lookahead
        self._bank.use_lookahead(lookahead)

    def begin_forward(self, token_ids_T: torch.Tensor) -> None:
        self._bank.begin_forward(token_ids_T)

    def substitutions(self) -> Substitutions | None:
        return self._bank.substitutions()

    def apply(self, rows: RoutedRows, residual_TD: torch.Tensor) -> torch.Tensor:
        if self._lookahead is not None and rows.layer != self._last_layer:
            self._sink(rows.layer, self._lookahead(rows.layer, rows.x_TD))
        return self._bank.apply(rows, residual_TD)

    def stats(self) -> ExpertStats:
        return self._bank.stats()

    def check_integrity(self) -> None:
        self._bank.check_integrity()

    def close(self) -> None:
        self._bank.close()
