"""A layer's co-clustering problem from a route trace: counts by token id, or by expert set where ids are unknown."""

import numpy as np
from scipy.sparse import csr_array

from smoe.clustering.problem import Array, LayerProblem
from smoe.core.errors import ConfigError
from smoe.core.route_trace import RouteTrace

UNKNOWN = -1


def layer_problem(
    trace: RouteTrace, layer_index: int, slots_of_device: tuple[int, ...], expert_group: Array | None = None
) -> LayerProblem:
    """The problem of the layer at `layer_index` of the trace's arrays.

    Rows are the distinct token ids, ascending; tokens of unknown id follow as one row for each distinct set of
    experts. `row_token` says which is which. `next_counts` comes from the layer after, None for the last.
    Needs about 60 bytes for each of the T * k activations while it runs. Raises ConfigError for slots or groups
    that are not those of the trace's experts.
    """
    num_experts = trace.num_experts
    if min(slots_of_device, default=0) < 1 or sum(slots_of_device) != num_experts:
        raise ConfigError("slots_of_device", list(slots_of_device), f"1 or more each, {num_experts} experts in all")
    if expert_group is not None and np.shape(expert_group) != (num_experts,):
        raise ConfigError("expert_group", f"shape {list(np.shape(expert_group))}", f"[{num_experts}]")
    ids = trace.expert_ids[layer_index]
    row_of_token, row_token = _rows(trace.token_ids, ids, num_experts)
    last = layer_index + 1 >= len(trace.layers)
    return LayerProblem(
        counts=_count(row_of_token, ids, (len(row_token), num_experts)),
        mass=np.bincount(row_of_token, minlength=len(row_token)).astype(np.float64),
        slots_of_device=slots_of_device,
        expert_group=expert_group,
        next_counts=None if last else transitions(ids, trace.expert_ids[layer_index + 1], num_experts),
        row_token=row_token,
    )


def transitions(ids: Array, next_ids: Array, num_experts: int) -> Array:
    """[E, E] i64: tokens that chose i of `ids` [T, k] and then j of `next_ids` [T, k]."""
    pairs = np.zeros(num_experts * num_experts, dtype=np.int64)
    wide, next_wide = ids.astype(np.int64), next_ids.astype(np.int64)
    for i in range(ids.shape[1]):
        for j in range(next_ids.shape[1]):
            pairs += np.bincount(wide[:, i] * num_experts + next_wide[:, j], minlength=len(pairs))
    return pairs.reshape(num_experts, num_experts)


def _rows(token_ids: Array, ids: Array, num_experts: int) -> tuple[Array, Array]:
    """([T] row of every token, [R] i32 token id of every row)."""
    known = token_ids != UNKNOWN
    tokens, row_of_known = np.unique(token_ids[known], return_inverse=True)
    row_of_token = np.empty(len(token_ids), dtype=np.int64)
    row_of_token[known] = row_of_known
    num_sets = 0
    if not known.all():
        sets, row_of_token[~known] = _distinct_sets(np.sort(ids[~known], axis=1), num_experts)
        row_of_token[~known] += len(tokens)
        num_sets = sets
    return row_of_token, np.concatenate([tokens, np.full(num_sets, UNKNOWN)]).astype(np.int32)


def _distinct_sets(ordered: Array, num_experts: int) -> tuple[int, Array]:
    """How many distinct rows `ordered` [T, k] has, and which of them each row is."""
    key = np.zeros(len(ordered), dtype=np.int64)
    for column in ordered.T:
        # Renumbered at each step, so that no number of experts overflows the key.
        _, key = np.unique(key * num_experts + column, return_inverse=True)
    return int(key.max(initial=-1)) + 1, key


def _count(row_of_token: Array, ids: Array, shape: tuple[int, int]) -> csr_array:
    """[R, E] i32, indices in order and without duplicates."""
    rows = np.repeat(row_of_token, ids.shape[1])
    ones = np.ones(len(rows), dtype=np.int32)
    counts = csr_array((ones, (rows, ids.ravel().astype(np.int32))), shape=shape)
    counts.sum_duplicates()
    return counts
