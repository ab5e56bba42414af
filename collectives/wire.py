"""Bytes and seconds of the exchanges of one MoE layer, by formula: what is measured is compared with it, and what is
not there is predicted by it. Torch-free.

G ranks, T rows, h bytes of a hidden state, k choices a row, n rows dispatched to another rank; over all ranks together:

    reduce     (G - 1) T h, twice for an all-reduce        gather   (G - 1) T h
    dispatch   n h, k (2 + 4) n bytes of ids and weights, 16 a message           combine   n h

On top, and small: where the chain of devices is followed, one more value with each gathered row.
"""

from collections.abc import Callable, Mapping

from smoe.clustering.traffic import RINGS

HEAD_BYTES = 16
"""Of a message: its rows and the rounds that its sender asks for, i64 each."""
ID_BYTES, WEIGHT_BYTES = 2, 4
"""Of one choice: an expert as i16, its weight as f32."""

Seconds = Callable[[float], float]
"""Of an exchange, by the bytes that each rank sends."""


def row_bytes(hidden: int, dtype_bytes: int, choices: int) -> int:
    """What one dispatched row weighs on the wire."""
    return hidden * dtype_bytes + choices * (ID_BYTES + WEIGHT_BYTES)


def wire_bytes(
    schedule: str,
    *,
    ranks: int,
    rows: float,
    hidden: int,
    dtype_bytes: int,
    choices: int,
    sent_rows: float,
    messages: float,
) -> dict[str, float]:
    """By purpose. `sent_rows` are dispatched to another rank than their own, in `messages` to each other rank, summed
    over the ranks that send them."""
    row = hidden * dtype_bytes
    ring = (ranks - 1) * rows * row
    told = (ranks - 1) * rows * dtype_bytes if schedule == "speculative" else 0
    rings = RINGS["allreduce" if schedule == "allreduce" else "scatter"]
    return {
        "reduce": float((rings - 1) * ring),
        "dispatch": sent_rows * row_bytes(hidden, dtype_bytes, choices) + HEAD_BYTES * (ranks - 1) * messages,
        "combine": sent_rows * row,
        "gather": float(ring + told),
    }


def exchange_s(
    schedule: str,
    wire: Mapping[str, float],
    ranks: int,
    spread: Seconds,
    gather: Seconds,
    *,
    reduce: Seconds | None = None,
    busiest: float = 1.0,
) -> dict[str, float]:
    """Seconds by purpose of one layer's exchanges, one after the other: `spread` of an all-to-all, `gather` of an
    all-gather, and `reduce` of a reduce-scatter, by default as an all-to-all. The busiest rank dispatches `busiest`
    times the mean."""
    each = {purpose: nbytes / ranks for purpose, nbytes in wire.items()}
    reduce = spread if reduce is None else reduce
    if schedule == "allreduce":
        reduce_s = reduce(each["reduce"] / 2) + gather(each["reduce"] / 2)
    else:
        reduce_s = reduce(each["reduce"])
    return {
        "reduce": reduce_s,
        "dispatch": spread(busiest * each["dispatch"]),
        "combine": spread(busiest * each["combine"]),
        "gather": gather(each["gather"]),
    }
