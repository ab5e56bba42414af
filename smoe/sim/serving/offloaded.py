"""A step whose experts do not all fit: the simulator of expert residency, forward by forward, in the same virtual time.

Which experts a token needs is read from a recorded trace: each request gets a place in it, drawn by its name, and its
tokens are the rows from there on (across the ends of recorded sequences, and on from the first after the last). So
requests that run together share experts as tokens of different texts do.
"""

import random
from collections.abc import Iterator
from dataclasses import replace

from smoe.core.errors import ConfigError
from smoe.core.link_model import LinkModel
from smoe.core.route_trace import RouteTrace
from smoe.core.stats import ExpertStats
from smoe.core.step import SpanPlan, StepPlan
from smoe.offload.ahead import PAUSE_SHARE
from smoe.offload.policies.spec import parse_policies
from smoe.sim.compute import ComputeModel
from smoe.sim.forwards import Span
from smoe.sim.runs import SteppedRun
from smoe.sim.serving.cost import LoadCost
from smoe.sim.serving.load import StepLoad
from smoe.sim.simulate import start
from smoe.sim.stacked import HostPart


class OffloadedCost:
    """A StepCost. Transfers go on while nothing runs, and what they brought stays for later steps."""

    def __init__(
        self,
        trace: RouteTrace,
        policy: str,
        capacity: str,
        *,
        link: LinkModel,
        expert_bytes: int,
        compute: ComputeModel,
        dense: LoadCost | None = None,
        host: HostPart | None = None,
        seed: int = 0,
    ) -> None:
        """As `simulate` has them, with the engine's pausing of prefetches. `compute` is of experts and of a layer;
        `dense`, if given, of everything else in a step instead, shared out evenly over the layers.

        Raises ConfigError, also for policies that know the future: here nobody does.
        """
        parse_policies(policy).check_live()
        run = start(
            trace,
            policy,
            capacity,
            link=link,
            compute=compute,
            expert_bytes=expert_bytes,
            pause_share=PAUSE_SHARE,
            host=host,
            seed=seed,
        )
        assert isinstance(run, SteppedRun)
        if dense is not None and compute.layer_s:
            raise ConfigError("compute", f"{compute.layer_s:g} s a layer", "0 a layer beside a cost of all else")
        self._run, self._compute, self._dense, self._seed = run, compute, dense, seed
        self._rows, self._layers = trace.num_tokens, len(trace.layers)
        self._start_of: dict[str, int] = {}

    def seconds(self, plan: StepPlan, now_s: float) -> float:
        replay = self._run.replay
        replay.now = now_s
        if self._dense is not None:
            replay.compute = replace(self._compute, layer_s=self._dense.of(StepLoad.of(plan)) / self._layers)
        replay.forward([rows for span in plan.spans for rows in self._rows_of(span)])
        return replay.now - now_s

    def stats(self) -> ExpertStats:
        """Counts so far, transfers that are under way taken as ended: to be called last."""
        return self._run.result().experts

    def _rows_of(self, span: SpanPlan) -> Iterator[Span]:
        if span.draft_limit:
            raise ConfigError("draft_tokens", span.draft_limit, "0 where experts are moved: drafts bring them in, too")
        name = span.request_id
        if name not in self._start_of:
            self._start_of[name] = random.Random(f"{self._seed} {name}").randrange(self._rows)
        first, left = (self._start_of[name] + span.past) % self._rows, len(span.token_ids)
        while left:
            taken = min(left, self._rows - first)
            yield first, first + taken
            first, left = 0, left - taken
