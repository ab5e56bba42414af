"""The second half of a layer: a dense gated MLP, or a router, experts and perhaps a shared expert."""

from collections.abc import Mapping
from functools import partial

import torch

from smoe.kernels import GatedMLP, LayerNorm, Linear, RMSNorm
from smoe.models.activations import sigmoid
from smoe.models.bank import ExpertBank, RoutedRows, SendingBank
from smoe.models.batch import StepContext
from smoe.models.route_counts import RouteCounts
from smoe.models.router import Router
from smoe.models.spec import Activation, DenseSpec, MoESpec

Params = Mapping[str, torch.Tensor]


class DenseMLP:
    """x + mlp(norm(x)), [T, D] to [T, D]."""

    def __init__(self, spec: DenseSpec, params: Params, prefix: str, norm: RMSNorm | LayerNorm) -> None:
        fused = norm if isinstance(norm, RMSNorm) else None
        self._norm = None if isinstance(norm, RMSNorm) else norm
        self._mlp = _gated_mlp(params, prefix, spec.activation, fused)

    def __call__(self, x_TD: torch.Tensor, context: StepContext) -> torch.Tensor:
        return self._mlp(x_TD if self._norm is None else self._norm(x_TD), x_TD)


class MoEBlock:
    """x + shared(h) + sum of the chosen experts of h, where h = norm(x). Tells the route sink and the
    counts what was chosen."""

    def __init__(
        self,
        spec: MoESpec,
        layer: int,
        params: Params,
        prefix: str,
        norm: RMSNorm | LayerNorm,
        bank: ExpertBank,
        counts: RouteCounts | None = None,
    ) -> None:
        self._layer, self._bank, self._counts = layer, bank, counts
        self._needs_logits = bank.needs_logits
        self._router = Router(spec.router, params, f"{prefix}.router")
        self._route = self._router.after(norm)
        self._shared = _gated_mlp(params, f"{prefix}.shared", spec.activation) if spec.shared_ffn else None
        gate = params[f"{prefix}.shared_gate.weight"] if spec.shared_gate else None
        self._shared_gate = None if gate is None else Linear(gate, out_dtype=torch.float32)
        self._sends = bank if isinstance(bank, SendingBank) and self._shared is not None else None

    def __call__(self, x_TD: torch.Tensor, context: StepContext) -> torch.Tensor:
        h_TD, logits_TE, ids_TK, weights_TK = self._route(x_TD)
        if self._counts is not None:
            self._counts.note(self._layer, ids_TK)
        if context.batch.route_sink is not None:
            context.batch.route_sink(self._layer, ids_TK, weights_TK, logits_TE)
        rows = RoutedRows(self._layer, h_TD, ids_TK, weights_TK, logits_TE if self._needs_logits else None)
        if self._sends is not None:
            return self._sends.apply_beside(rows, partial(self._residual, x_TD, h_TD))
        return self._bank.apply(rows, self._residual(x_TD, h_TD))

    def _residual(self, x_TD: torch.Tensor, h_TD: torch.Tensor) -> torch.Tensor:
        """x + shared(h)."""
        if self._shared is None:
            return x_TD
        if self._shared_gate is None:
            return self._shared(h_TD, x_TD)
        # Not addcmul, whose vector and scalar parts may fuse differently.
        return x_TD + sigmoid(self._shared_gate(h_TD)).to(x_TD.dtype) * self._shared(h_TD)

    def route(self, h_TD: torch.Tensor) -> torch.Tensor:
        """Logits [T, E] fp32 that this layer's router gives for any hidden state."""
        return self._router.logits(h_TD)


def _gated_mlp(params: Params, prefix: str, act: Activation, norm: RMSNorm | None = None) -> GatedMLP:
    gate, up, down = (params[f"{prefix}.{part}.weight"] for part in ("gate", "up", "down"))
    return GatedMLP(gate, up, down, norm=norm, act=act)
