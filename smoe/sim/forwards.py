"""Which rows of a trace go through the model together."""

from collections import deque
from collections.abc import Iterator
from typing import Literal

from smoe.core.route_trace import PREFILL, RouteTrace

Mode = Literal["recorded", "decode", "prefill"]
MODES: tuple[Mode, ...] = ("recorded", "decode", "prefill")

Span = tuple[int, int]
"""Rows first..last + 1 of the trace."""


def forwards(trace: RouteTrace, mode: Mode, batch: int) -> Iterator[tuple[Span, ...]]:
    """One forward after the other. `batch` sequences run at a time, in the order of the trace; where one ends, the next
    begins. Of each, a forward takes

        recorded  its prompt (all rows of phase prefill) first, then one token
        decode    one token
        prefill   the whole sequence
    """
    waiting = iter(range(trace.num_sequences))
    running: list[deque[Span]] = []
    while True:
        while len(running) < batch and (sequence := next(waiting, None)) is not None:
            running.append(deque(_spans(trace, mode, sequence)))
        if not running:
            return
        yield tuple([spans.popleft() for spans in running])
        running = [spans for spans in running if spans]


def _spans(trace: RouteTrace, mode: Mode, sequence: int) -> Iterator[Span]:
    start, end = (int(row) for row in trace.sequence_start[sequence : sequence + 2])
    if mode == "prefill":
        yield start, end
        return
    first = start
    if mode == "recorded":
        while first < end and trace.phase[first] == PREFILL:
            first += 1
        if first > start:
            yield start, first
    for row in range(first, end):
        yield row, row + 1
