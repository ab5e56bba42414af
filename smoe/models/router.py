"""From router logits to chosen experts and their weights, by the rule of the family."""

from collections.abc import Callable, Mapping

import torch

from smoe.kernels import LayerNorm, Linear, RMSNorm, SoftmaxRouter, topk_softmax
from smoe.kernels.router import Routed
from smoe.models.activations import sigmoid
from smoe.models.spec import RouterSpec

Params = Mapping[str, torch.Tensor]
Chosen = tuple[torch.Tensor, torch.Tensor]


class Router:
    """`router(h_TD)` gives (ids [T, K] i32, weights [T, K] fp32, logits [T, E] fp32).

    Ids of a row are distinct and in range whatever the numbers are. A row whose logits are not all finite gets NaN
    weights, so that NaN reaches its final logits and its request is ended; other rows do not notice.
    """

    def __init__(self, spec: RouterSpec, params: Params, prefix: str) -> None:
        self._spec = spec
        self._linear = Linear(params[f"{prefix}.weight"], params.get(f"{prefix}.bias"), out_dtype=torch.float32)
        self._bias_E = params[f"{prefix}.selection_bias"] if spec.selection_bias else None
        self._fused = is_plain_softmax(spec)
        # A softmax over the chosen logits is the softmax over all of them, renormalised.
        self._normalize = spec.normalize or spec.scoring == "softmax_selected"

    def __call__(self, h_TD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        logits_TE = self.logits(h_TD)
        if self._fused:
            ids_TK, weights_TK = topk_softmax(logits_TE, self._spec.top_k, self._normalize)
        else:
            ids_TK, weights_TK = choose(self._spec, logits_TE, self._bias_E)
        return ids_TK, weights_TK, logits_TE

    def after(self, norm: RMSNorm | LayerNorm) -> Callable[[torch.Tensor], Routed]:
        """The router on norm(x) as a function of x; one call of a kernel where there is one for the rule."""
        if self._fused and isinstance(norm, RMSNorm):
            linear = self._linear
            return SoftmaxRouter(linear.weight, linear.bias, norm, self._spec.top_k, self._normalize)

        def route(x_TD: torch.Tensor) -> Routed:
            h_TD = norm(x_TD)
            ids_TK, weights_TK, logits_TE = self(h_TD)
            return Routed(h_TD, logits_TE, ids_TK, weights_TK)

        return route

    def logits(self, h_TD: torch.Tensor) -> torch.Tensor:
        logits_TE: torch.Tensor = self._linear(h_TD)
        return logits_TE


def is_plain_softmax(spec: RouterSpec) -> bool:
    """Whether the fused kernel computes this rule."""
    return (
        spec.scoring in ("softmax", "softmax_selected")
        and spec.scale == 1.0
        and not spec.selection_bias
        and spec.num_groups == 1
        and spec.normalize_eps == 0.0
    )


def choose(spec: RouterSpec, logits_TE: torch.Tensor, bias_E: torch.Tensor | None) -> Chosen:
    """The general rule in torch; the kernel of the plain softmax is compared with it."""
    finite_T1 = logits_TE.isfinite().all(dim=1, keepdim=True)
    logits_TE = logits_TE.where(finite_T1, 0.0)
    if spec.scoring == "sparsemixer":
        ids_TK, weights_TK = _sparsemixer(logits_TE, spec.jitter_eps)
    elif spec.scoring == "softmax_selected":
        weights_TK, ids_TK = logits_TE.topk(spec.top_k, dim=1)
        weights_TK = weights_TK.softmax(dim=1)
    else:
        scores_TE = sigmoid(logits_TE) if spec.scoring == "sigmoid" else logits_TE.softmax(dim=1)
        selection_TE = scores_TE if bias_E is None else scores_TE + bias_E
        if spec.num_groups > 1:
            selection_TE = _mask_groups(spec, selection_TE)
        ids_TK = selection_TE.topk(spec.top_k, dim=1).indices
        weights_TK = scores_TE.gather(1, ids_TK)
    if spec.normalize:
        weights_TK = weights_TK / (weights_TK.sum(dim=1, keepdim=True) + spec.normalize_eps)
    weights_TK = torch.where(finite_T1, weights_TK * spec.scale, torch.nan)
    return ids_TK.to(torch.int32), weights_TK


def _mask_groups(spec: RouterSpec, selection_TE: torch.Tensor) -> torch.Tensor:
    """Selection scores with `masked_value` for every expert outside the best groups."""
    selection_TGN = selection_TE.view(len(selection_TE), spec.num_groups, spec.num_experts // spec.num_groups)
    if spec.group_score == "max":
        groups_TG = selection_TGN.amax(dim=2)
    else:
        groups_TG = selection_TGN.topk(2, dim=2).values.sum(dim=2)
    best_TB = groups_TG.topk(spec.top_groups, dim=1).indices
    masked_TG = torch.ones_like(groups_TG, dtype=torch.bool).scatter_(1, best_TB, False)
    masked_TGN = selection_TGN.masked_fill(masked_TG.unsqueeze(2), spec.masked_value)
    return masked_TGN.view_as(selection_TE)


def _sparsemixer(logits_TE: torch.Tensor, jitter_eps: float) -> Chosen:
    """Two experts, one after the other; each weighs its share among the logits near its own (inference form)."""
    magnitude_TE = logits_TE.abs()
    open_TE = logits_TE
    ids, weights = [], []
    for _ in range(2):
        best_T1, id_T1 = open_TE.max(dim=1, keepdim=True)
        far_TE = (best_T1 - logits_TE) / magnitude_TE.clamp(min=best_T1) > 2 * jitter_eps
        gates_TE = open_TE.masked_fill(far_TE, -torch.inf).softmax(dim=1)
        ids.append(id_T1)
        weights.append(gates_TE.gather(1, id_T1))
        open_TE = open_TE.scatter(1, id_T1, -torch.inf)
    return torch.cat(ids, dim=1), torch.cat(weights, dim=1)
