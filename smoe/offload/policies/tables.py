"""RouteTables: how often experts followed experts, and tokens; learnt from passes, from a route trace, or loaded.

Shapes: L MoE layers by index, E experts, N tokens, T rows, K choices. Counts are f32, exact up to 2 ** 24.

    next_counts [L, E, E]    rows of which layer l chose i and the layer after it chose j; after the last layer comes
                             the first one of the sequence's next token
    token_ids [N] i32        the tokens that are known, no more than `max_tokens`
    token_counts [N, L, E]   rows of a token that chose expert e;  token_rows [N, L] its rows

One safetensors file holds them, with JSON under `route_tables`: schema, num_experts, layers.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from smoe.core.errors import TraceError
from smoe.core.route_trace import RouteTrace
from smoe.offload.policies.protocols import Array

SCHEMA = "smoe.route_tables/1"
_META = "route_tables"


class RouteTables:
    def __init__(self, layers: Sequence[int], num_experts: int, *, max_tokens: int = 1024) -> None:
        self.layers, self.num_experts, self.max_tokens = tuple(layers), num_experts, max_tokens
        self.index = {layer: index for index, layer in enumerate(layers)}
        self.next_counts = np.zeros((len(layers), num_experts, num_experts), np.float32)
        self.token_counts = np.zeros((0, len(layers), num_experts), np.float32)
        self.token_rows = np.zeros((0, len(layers)), np.float32)
        self._row_of: dict[int, int] = {}

    def token_ids(self) -> Array:
        """[N] i32, in the order in which they became known."""
        return np.array(list(self._row_of), dtype=np.int32)

    def learn_next(self, layer: int, ids_TK: Array, next_ids_TK: Array) -> None:
        """Rows of which `layer` chose `ids_TK` and the layer after it `next_ids_TK`."""
        table = self.next_counts[self.index[layer]]
        np.add.at(table, (ids_TK[:, :, None], next_ids_TK[:, None, :]), 1)

    def learn_tokens(self, layer: int, token_ids_T: Array, ids_TK: Array) -> None:
        """Rows of tokens of which `layer` chose `ids_TK`; new tokens beyond `max_tokens` are passed over."""
        rows = np.array([self._row(token) for token in token_ids_T.tolist()], dtype=np.intp)
        known = rows >= 0
        index = self.index[layer]
        np.add.at(self.token_counts[:, index], (rows[known, None], ids_TK[known]), 1)
        np.add.at(self.token_rows[:, index], rows[known], 1)

    def learn_trace(self, trace: RouteTrace) -> None:
        """Of its tokens, the most frequent ones become known. Raises ValueError for another geometry."""
        if (trace.layers, trace.num_experts) != (self.layers, self.num_experts):
            raise ValueError(
                f"trace of layers {list(trace.layers)}, {trace.num_experts} experts "
                f"(expected {list(self.layers)}, {self.num_experts})"
            )
        tokens, counts = np.unique(trace.token_ids, return_counts=True)
        for token in tokens[np.argsort(-counts, kind="stable")].tolist():
            self._row(token)
        ids = trace.expert_ids.astype(np.intp)
        for index, layer in enumerate(trace.layers):
            self.learn_tokens(layer, trace.token_ids, ids[index])
            if index + 1 < len(trace.layers):
                self.learn_next(layer, ids[index], ids[index + 1])
        continues = np.ones(trace.num_tokens, dtype=bool)
        continues[trace.sequence_start[:-1]] = False
        later = np.flatnonzero(continues)
        self.learn_next(trace.layers[-1], ids[-1, later - 1], ids[0, later])

    def next_scores(self, layer: int, ids_TK: Array) -> Array:
        """[T, E]: the chance that the layer after `layer` chooses an expert, averaged over the row's choices."""
        table = self.next_counts[self.index[layer]]
        if len(ids_TK) == 1:
            followed = table[ids_TK[0]]
            shares = followed / np.maximum(followed.sum(axis=1, keepdims=True), 1)
            scores: Array = shares.sum(axis=0, keepdims=True)
            return scores
        chosen = np.zeros((len(ids_TK), self.num_experts), np.float32)
        np.put_along_axis(chosen, ids_TK.astype(np.intp), 1, axis=1)
        scores = chosen @ (table / np.maximum(table.sum(axis=1, keepdims=True), 1))
        return scores

    def token_scores(self, layer: int, token_ids_T: Array) -> Array:
        """[T, E]: the share of the token's rows of which `layer` chose an expert; 0 for unknown tokens."""
        rows = np.array([self._row_of.get(token, -1) for token in token_ids_T.tolist()], dtype=np.intp)
        scores = np.zeros((len(rows), self.num_experts), np.float32)
        known, index = rows >= 0, self.index[layer]
        seen = np.maximum(self.token_rows[rows[known], index, None], 1)
        scores[known] = self.token_counts[rows[known], index] / seen
        return scores

    def save(self, path: str | Path) -> None:
        header = {"schema": SCHEMA, "num_experts": self.num_experts, "layers": list(self.layers)}
        arrays = {
            "next_counts": self.next_counts,
            "token_ids": self.token_ids(),
            "token_counts": self.token_counts[: len(self._row_of)],
            "token_rows": self.token_rows[: len(self._row_of)],
        }
        contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        save_file(contiguous, str(path), metadata={_META: json.dumps(header, sort_keys=True)})

    @classmethod
    def load(cls, path: str | Path, *, max_tokens: int = 1024) -> "RouteTables":
        """Knows all tokens of the file, and more up to `max_tokens`. Raises TraceError naming file and fault."""
        try:
            with safe_open(str(path), framework="numpy") as file:
                header = json.loads((file.metadata() or {})[_META])
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
            if header["schema"] != SCHEMA:
                raise ValueError(f"schema {header['schema']!r} (expected {SCHEMA!r})")
            tables = cls(header["layers"], header["num_experts"], max_tokens=max_tokens)
            tables._take(arrays)
        except (OSError, SafetensorError, ValueError, KeyError, TypeError, MemoryError) as error:
            raise TraceError(f"{path}: route tables: {type(error).__name__}: {error}") from error
        return tables

    def _take(self, arrays: dict[str, Array]) -> None:
        tokens, shape = len(arrays["token_ids"]), (len(self.layers), self.num_experts)
        shapes = {
            "next_counts": (*shape, self.num_experts),
            "token_ids": (tokens,),
            "token_counts": (tokens, *shape),
            "token_rows": (tokens, len(self.layers)),
        }
        for name, expected in shapes.items():
            array = arrays[name]
            if array.shape != expected or not np.isfinite(array).all() or (array < 0).any():
                raise ValueError(f"{name}: shape {list(array.shape)} (expected {list(expected)}, finite, 0 or above)")
        self.next_counts = arrays["next_counts"].astype(np.float32)
        self.token_counts = arrays["token_counts"].astype(np.float32)
        self.token_rows = arrays["token_rows"].astype(np.float32)
        self._row_of = {token: row for row, token in enumerate(arrays["token_ids"].tolist())}
        if len(self._row_of) != tokens:
            raise ValueError("token_ids: distinct tokens expected")

    def _row(self, token: int) -> int:
        """Of a token, made known if there is room; -1 if not."""
        row = self._row_of.get(token)
        if row is not None:
            return row
        row = len(self._row_of)
        if row >= self.max_tokens:
            return -1
        self._row_of[token] = row
        if row == len(self.token_counts):
            more = min(max(64, 2 * row), self.max_tokens) - row
            self.token_counts = np.pad(self.token_counts, ((0, more), (0, 0), (0, 0)))
            self.token_rows = np.pad(self.token_rows, ((0, more), (0, 0)))
        return row
