"""One rank of the benchmark: `python -m smoe.bench.comm.rank FD`, which asks it for one method of Rank after another.

FD is one end of a socket pair; messages are pickles of (method, arguments), those of the first are Rank's own.
"""

import os
import sys
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch

from smoe.bench.comm.cases import GROUPED, VANILLA, Case, ModelPlan, Work
from smoe.bench.comm.messages import Answer, Pass, Seen
from smoe.bench.comm.replay import Learn, Replay
from smoe.bench.comm.timed import Exchange, TimedGroup
from smoe.collectives.rows import RowOrder
from smoe.collectives.schedules.plain import AllReduce, Scatter
from smoe.collectives.schedules.protocol import Schedule
from smoe.collectives.schedules.speculative import Speculative
from smoe.collectives.world import World, WorldPlan
from smoe.core.model_info import ModelInfo
from smoe.core.placement import Array
from smoe.core.step import StepPlan, StepResult
from smoe.engine.model_facts import model_info
from smoe.engine.parallel import RankPart, load_part
from smoe.engine.runner import Runner
from smoe.models.bank import ExpertBank
from smoe.models.batch import Batch
from smoe.models.decoder import Decoder
from smoe.models.kv import KVCache
from smoe.models.loading import open_checkpoint

DTYPE = torch.bfloat16
_DRAIN_BYTES = 1 << 19


class Rank:
    def __init__(self, plan: WorldPlan, model: ModelPlan, cases: tuple[Case, ...]) -> None:
        """Waits for the others, and loads its part once for each placement."""
        torch.set_num_threads(1)
        self._world = World(plan)
        self._group = TimedGroup(self._world.all)
        self._checkpoint = open_checkpoint(model.folder)
        parts = {
            name: load_part(self._checkpoint, self._group, placement, DTYPE)
            for name, placement in model.placements.items()
        }
        self._decoders: dict[str, tuple[Decoder, ExpertBank]] = {}
        self._schedules: dict[str, Schedule] = {}
        for case in cases:
            part = parts[case.placement]
            schedule = self._schedules[case.name] = _schedule(case, part)
            self._decoders[case.name] = part.decoder(schedule, dedup=case.dedup)
        self._learn = Learn(self._group)
        self._learner, _ = parts[GROUPED if GROUPED in parts else VANILLA].decoder(self._learn)
        spec = parts[cases[0].placement].share.local_spec()
        self._kv = KVCache(spec, num_rows=model.kv_rows, num_states=1, dtype=DTYPE)
        self._orders: dict[str, dict[int, RowOrder]] = {}

    def see(self, case: Case, work: Work) -> Seen:
        """Also what an oracle learns from."""
        schedule = self._schedules[case.name]
        if isinstance(schedule, Replay):
            self._forward(self._learner, work)
            schedule.orders = self._orders[work.name] = dict(self._learn.orders)
        ids: dict[int, Array] = {}

        def sink(layer: int, ids_TK: torch.Tensor, weights_TK: torch.Tensor, logits_TE: torch.Tensor) -> None:
            ids[layer] = ids_TK.numpy().astype(np.int16)

        self._group.ledger.reset()
        logits_MV = self._forward(self._decoders[case.name][0], work, sink)
        chosen = tuple(logits_MV.argmax(1).tolist()) if self._group.rank == 0 else ()
        return Seen(ids, self._group.ledger.all_traffic(), chosen)

    def run(self, case: Case, work: Work) -> Pass:
        schedule = self._schedules[case.name]
        if isinstance(schedule, Replay):
            schedule.orders = self._orders[work.name]
        self._group.all_gather(torch.zeros(1), "sizes")  # so that all begin together
        self._group.exchanges.clear()
        start_s = time.monotonic()
        self._forward(self._decoders[case.name][0], work)
        return Pass(start_s, time.monotonic(), tuple(self._group.exchanges))

    def probe(self, sizes: tuple[int, ...]) -> list[tuple[str, Exchange]]:
        """Exchanges of `sizes` bytes from each rank to each other one, each right behind a large one: after a pause a
        link lets some bytes through at once, and in a layer there is none."""
        found = []
        size = self._group.size
        for nbytes in sizes:
            rows = torch.zeros(size, nbytes, dtype=torch.uint8)
            for kind in ("all_to_all", "all_gather"):
                self._group.all_gather(torch.zeros(_DRAIN_BYTES, dtype=torch.uint8), "sizes")
                if kind == "all_to_all":
                    self._group.all_to_all(rows, [1] * size, [1] * size, kind)
                else:
                    self._group.all_gather(rows[:1], kind)
                found.append((kind, self._group.exchanges[-1]))
        return found

    def open_engine(self, case: Case, max_model_len: int, num_seqs: int) -> tuple[ModelInfo, int]:
        """From now on `execute` runs `case`. What an engine must know, and the rows of its KV cache."""
        decoder, bank = self._decoders[case.name]
        spec = self._checkpoint.spec
        info = model_info(
            self._checkpoint,
            None,
            dtype=DTYPE,
            max_model_len=max_model_len,
            expert_bytes=self._checkpoint.expert_source(spec.moe_layers[0], 0).assembled_nbytes(DTYPE),
            dense_bytes=0,
        )
        kv = KVCache(decoder.spec, num_rows=max_model_len * num_seqs, num_states=num_seqs, dtype=DTYPE)
        samples = self._group.rank == 0
        self._runner = Runner(decoder, kv, bank, info, world=self._world, samples=samples)
        return info, kv.num_rows

    def execute(self, plan: StepPlan) -> StepResult:
        self._group.exchanges.clear()
        return self._runner.execute(plan)

    @torch.inference_mode()
    def _forward(self, decoder: Decoder, work: Work, sink: Any = None) -> torch.Tensor:
        return decoder.forward(Batch.build(list(work.spans), route_sink=sink), self._kv)


def _schedule(case: Case, part: RankPart) -> Schedule:
    if case.schedule == "allreduce":
        return AllReduce(part.group)
    if case.schedule == "scatter":
        return Scatter(part.group)
    if case.schedule == "oracle":
        return Replay(part.group)
    assert part.placement.tables is not None
    tables, layers = part.placement.tables, part.placement.layers
    return Speculative(part.group, tables, layers, capacity_factor=case.capacity_factor)


def main() -> None:
    asked = Connection(int(sys.argv[1]))
    rank: Rank | None = None
    while True:
        try:
            method, arguments = asked.recv()
        except EOFError:
            # No tidy end of the world: the others leave at the same moment.
            os._exit(0)
        try:
            if rank is None:
                rank = Rank(*arguments)
                answer = Answer()
            else:
                answer = Answer(getattr(rank, method)(*arguments))
        except Exception:
            answer = Answer(error=traceback.format_exc())
        asked.send(answer)


if __name__ == "__main__":
    main()
