"""Choose the next token of each row. Shapes: M rows, V vocabulary, N rows that draw."""

import math
from collections.abc import Sequence

import torch

from smoe.core.request import TokenLogprob
from smoe.core.sampling import SamplingParams
from smoe.core.step import SampledToken
from smoe.engine.random import uniform

Draw = tuple[SamplingParams, int, int]
"""(parameters, seed, index of the token in its request) of one row."""


def sample(logits_MV: torch.Tensor, draws: Sequence[Draw]) -> list[SampledToken]:
    """One token a row from fp32 logits; a row whose maximum is not finite gets a `numeric` error instead.

    NaN wins every maximum, so the greedy choice detects it at no cost. A row's token depends on that row alone.
    """
    best_M, ids_M = logits_MV.max(-1)
    best, ids = best_M.tolist(), ids_M.tolist()
    drawn = [row for row, (params, _, _) in enumerate(draws) if params.temperature > 0]
    if drawn:
        rows_NV = logits_MV if len(drawn) == len(draws) else logits_MV[drawn]
        for row, token in zip(drawn, _draw(rows_NV, [draws[row] for row in drawn]), strict=True):
            ids[row] = token
    return [
        SampledToken(ids[row], None if params.logprobs is None else _logprob(logits_MV[row], ids[row], params.logprobs))
        if math.isfinite(best[row])
        else SampledToken(None, error=f"numeric: logits of the next token are not finite (maximum {best[row]})")
        for row, (params, _, _) in enumerate(draws)
    ]


def truncated_probs(logits_NV: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor:
    """The distribution that is drawn from, fp64 [N, V]: temperature, then min-p, then top-k, then top-p.

    Tokens as likely as the last one kept are kept as well, so ties cannot depend on a sorting order.
    """

    def column(values: list[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float64, device=logits_NV.device).unsqueeze(1)

    x_NV = logits_NV.double() / column([p.temperature for p in params])
    x_NV = x_NV - x_NV.max(-1, keepdim=True).values
    if any(p.min_p > 0 for p in params):
        x_NV = _keep(x_NV, column([math.log(p.min_p) if p.min_p > 0 else -math.inf for p in params]))
    if any(p.top_k > 0 for p in params):
        vocab = x_NV.shape[-1]
        kth = [min(p.top_k, vocab) or vocab for p in params]
        largest_NK = x_NV.topk(max(k if k < vocab else 1 for k in kth), dim=-1).values
        index_N1 = torch.tensor([k - 1 if k < vocab else 0 for k in kth], device=x_NV.device).unsqueeze(1)
        bounded_N1 = torch.tensor([k < vocab for k in kth], device=x_NV.device).unsqueeze(1)
        x_NV = _keep(x_NV, largest_NK.gather(1, index_N1).masked_fill(~bounded_N1, -math.inf))
    if any(p.top_p < 1 for p in params):
        x_NV = _nucleus(x_NV, column([p.top_p for p in params]))
    return x_NV.softmax(-1)


def _nucleus(x_NV: torch.Tensor, top_p_N1: torch.Tensor) -> torch.Tensor:
    """Masks what lies below the smallest set of likely tokens whose mass reaches top_p."""
    probs_NV = x_NV.softmax(-1)
    # Tokens below (1 - top_p) / V cannot weigh 1 - top_p together, so all of them lie outside: no full sort.
    tail_N1 = torch.where(top_p_N1 < 1, (1 - top_p_N1) / probs_NV.shape[-1], 2.0)
    candidates = int((probs_NV >= tail_N1).sum(-1).max())
    sorted_NC = probs_NV.topk(max(candidates, 1), dim=-1).values
    inside_NC = sorted_NC.cumsum(-1) - sorted_NC < top_p_N1
    last_N1 = (inside_NC.sum(-1, keepdim=True) - 1).clamp(min=0)
    least_N1 = torch.where(top_p_N1 < 1, sorted_NC.gather(1, last_N1), 0.0)
    return x_NV.masked_fill(probs_NV < least_N1, -math.inf)


def _keep(x_NV: torch.Tensor, least_N1: torch.Tensor) -> torch.Tensor:
    return x_NV.masked_fill(x_NV < least_N1, -math.inf)


def _draw(logits_NV: torch.Tensor, draws: Sequence[Draw]) -> list[int]:
    """Inverse of the cumulative distribution in order of token id, at one uniform number a row."""
    mass_NV = truncated_probs(logits_NV, [params for params, _, _ in draws]).cumsum(-1)
    numbers = [[uniform(seed, index)] for _, seed, index in draws]
    u_N1 = torch.tensor(numbers, dtype=torch.float64, device=mass_NV.device)
    total_N1 = mass_NV[:, -1:]
    below_N1 = torch.nextafter(total_N1, torch.zeros_like(total_N1))
    # Searching to the right of a target below the total can only land on a token of non-zero probability.
    ids_N1 = torch.searchsorted(mass_NV, torch.minimum(u_N1 * total_N1, below_N1), right=True)
    return ids_N1.squeeze(1).clamp(max=mass_NV.shape[-1] - 1).tolist()


def _logprob(logits_V: torch.Tensor, token_id: int, num_top: int) -> TokenLogprob:
    logprobs_V = logits_V.double().log_softmax(-1)
    chosen = float(logprobs_V[token_id])
    if num_top == 0:
        return TokenLogprob(token_id, chosen)
    values, ids = logprobs_V.topk(min(num_top, len(logprobs_V)))
    return TokenLogprob(token_id, chosen, tuple(zip(ids.tolist(), values.tolist(), strict=True)))
