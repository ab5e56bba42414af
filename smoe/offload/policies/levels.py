"""Utility as slots go by it in MoE-SpAc: one score orders both what is evicted and what is brought in (spec P3.1 c).

    score   MOST + 1 frozen: its layer runs · 1..MOST its utility · 0 its layer has just run, or it is cold

A layer that starts to run takes back what it still has in the queue, which is too late, and freezes what it holds. When
it has run, all that it holds falls to 0 and every expert of utility tau and above is queued at the level of its
utility. The queue is served from its highest level: who holds a slot gets its score back, who holds none gets the slot
of lowest score if that is below tau, else it waits. So what the last layers held goes first, then the least useful.
As long as a layer finds slots that are free, all that it has used is queued: else they would stay empty for long.
"""

import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from smoe.offload.policies.balance import Limits, Objective, Split, choose_threshold
from smoe.offload.policies.base import Deaf
from smoe.offload.policies.demand import requests
from smoe.offload.policies.order import Heap
from smoe.offload.policies.protocols import (
    Array,
    Costs,
    Evictable,
    Key,
    MissDecision,
    MissPolicy,
    Reason,
    Routing,
)
from smoe.offload.policies.utility_states import MOST, States

COLD, HOT, FROZEN = range(3)


class LevelQueue:
    """Requests for slots: first in, first out in each of MOST levels, the highest level before the others."""

    def __init__(self) -> None:
        self._level_of: dict[Key, int] = {}
        self._levels: list[OrderedDict[Key, None]] = [OrderedDict() for _ in range(MOST)]

    def __len__(self) -> int:
        return len(self._level_of)

    def __contains__(self, key: Key) -> bool:
        return key in self._level_of

    def __iter__(self) -> Iterator[Key]:
        for level in reversed(self._levels):
            yield from level

    def push(self, key: Key, level: int) -> None:
        """Behind all others of `level`, from 1 to MOST; it is not in the queue."""
        assert key not in self._level_of
        self._level_of[key] = level
        self._levels[level - 1][key] = None

    def remove(self, key: Key) -> None:
        del self._levels[self._level_of.pop(key) - 1][key]

    def drop(self, layer: int) -> None:
        """Takes back all requests of a layer."""
        for key in [key for key in self._level_of if key[0] == layer]:
            self.remove(key)


class UtilityLevels(Deaf):
    """An Eviction; UtilityPrefetch serves its queue. Without that a score comes back as soon as its layer has run.

    Plans of others (a draft's, a look-ahead's) are better informed: what they name counts as of highest utility until
    its layer has run, and always gets a slot if one can be had.
    """

    def __init__(
        self, states: States, layers: Sequence[int], *, tau: int = 1, objective: Objective | None = None
    ) -> None:
        """`tau` for every layer; with an `objective` it is chosen anew whenever a layer has run, as soon as costs are
        known (`heard`)."""
        self.states = states
        self.queue = LevelQueue()
        self.served = False
        """Whether somebody serves the queue."""
        self.balanced: dict[int, Split] = {}
        """Of layers whose tau was chosen: what its last window would take with it."""
        self._tau = dict.fromkeys(layers, tau)
        self._objective: Objective | None = objective
        self._costs: Costs | None = None
        self._running: int | None = None
        self._counts: dict[int, int] = {}
        self._clock = 0
        # Of layers that had no free slot when they last wanted one: who may lose theirs to them.
        self._full: dict[int, Sequence[int]] = {}
        self._victim_for: Key | None = None
        self._held: dict[int, set[int]] = {layer: set() for layer in layers}
        self._scores: dict[Key, tuple[int, int, int, int]] = {}  # group, score, utility, clock
        self._heap = Heap(self._scores)
        self._passed_over: set[Key] = set()

    @property
    def balances(self) -> bool:
        """Whether it goes by costs, once it has `heard` them."""
        return self._objective is not None

    def tau(self, layer: int) -> int:
        return self._tau[layer]

    def score(self, layer: int, expert: int) -> int:
        """Of an expert that holds a slot."""
        return self._scores[layer, expert][1]

    def begin_epoch(self) -> None:
        self._leave()

    def begin_layer(self, layer: int) -> None:
        self._leave()
        self._running = layer
        self.queue.drop(layer)

    def demand(self, routing: Routing) -> None:
        self._counts = requests(routing)
        self.states.move(routing.layer, self._counts)
        for expert in self._held[routing.layer]:
            self._rate((routing.layer, expert), MOST + 1)

    def admit(self, layer: int, expert: int, reason: Reason) -> None:
        key = (layer, expert)
        self._held[layer].add(expert)
        if self._victim_for != key:
            self._full.pop(layer, None)
        asked = key in self.queue
        if asked:
            self.queue.remove(key)
        if layer == self._running:
            self._rate(key, MOST + 1)
        else:
            planned = reason is Reason.PREFETCH and not asked
            self._rate(key, MOST if planned else int(self.states.of(layer)[expert]))
        self._heap.push(key)
        if asked:
            self._restore()

    def touch(self, layer: int, experts: Sequence[int]) -> None:
        for expert in experts:
            self._rate((layer, expert), self._scores[layer, expert][1])

    def confirm(self, layer: int, experts: Sequence[int]) -> None:
        for expert in experts:
            self._rate((layer, expert), max(MOST, self._scores[layer, expert][1]))

    def forget(self, layer: int, expert: int) -> None:
        self._held[layer].remove(expert)
        self._heap.remove((layer, expert))
        del self._scores[layer, expert]

    def victim(self, layers: Sequence[int], evictable: Evictable, wanted: Key, reason: Reason) -> Key | None:
        self._full[wanted[0]], self._victim_for = layers, wanted
        entry = self._heap.first_entry(layers, evictable)
        if reason is Reason.PREFETCH and wanted in self.queue:
            cold = self.states.of(wanted[0])[wanted[1]] < self._tau[wanted[0]]
            if cold or entry is None or entry[0][0] != COLD:
                self._passed_over.add(wanted)
                self._restore()
                return None
        return None if entry is None else entry[1]

    def heard(self, costs: Costs) -> None:
        """What the threshold is chosen by."""
        self._costs = costs

    def wanted(self) -> list[Key]:
        """Queued ones that hold no slot, in the order of service: as many as a layer has experts, at most."""
        self._passed_over.clear()
        self._restore()
        found: list[Key] = []
        most = max(len(self.states.of(layer)) for layer in self._tau)
        for key in self.queue:
            if len(found) == most:
                break
            if key not in self._scores:
                found.append(key)
        return found

    def _rate(self, key: Key, score: int) -> None:
        """Falls must be told to the heap."""
        self._clock += 1
        layer, expert = key
        group = FROZEN if score > MOST else HOT if score >= self._tau[layer] else COLD
        self._scores[key] = (group, score, int(self.states.of(layer)[expert]), self._clock)

    def _leave(self) -> None:
        """The layer that ran has run."""
        layer, self._running = self._running, None
        if layer is None:
            return
        states = self.states.of(layer)
        if self._objective is not None and self._costs is not None:
            self._choose(layer, states, self._costs, self._objective)
        for expert in self._held[layer]:
            age, key = self._scores[layer, expert][3], (layer, expert)
            score = 0 if self.served else int(states[expert])
            self._scores[key] = (int(score >= self._tau[layer]), score, int(states[expert]), age)
            self._heap.push(key)
        if self.served:
            wanted = set(np.flatnonzero(states >= self._tau[layer]).tolist())
            if layer not in self._full:
                wanted |= self._counts.keys() - self._held[layer]
            for expert in sorted(wanted):
                self.queue.push((layer, expert), max(1, int(states[expert])))

    def _restore(self) -> None:
        """Serves those who hold slots, up to the first who has still to get one."""
        served = []
        for key in self.queue:
            if key in self._scores:
                self._raise(key)
                served.append(key)
            elif key not in self._passed_over:
                break
        for key in served:
            self.queue.remove(key)

    def _raise(self, key: Key) -> None:
        group, score, utility, age = self._scores[key]
        if utility >= self._tau[key[0]]:
            self._scores[key] = (max(HOT, group), max(score, utility), utility, age)

    def _choose(self, layer: int, states: Array, costs: Costs, objective: Objective) -> None:
        """Time for transfers is what all layers take until this one runs again, shared by all."""
        window_s = sum(split.makespan_s for split in self.balanced.values())
        known = len(self.balanced) == len(self._tau)
        may_lose = [self.states.of(other)[list(self._held[other])] for other in self._full.get(layer, ())]
        limits = Limits(
            fetch_s=costs.fetch_s,
            available_s=window_s / len(self._tau) if known else math.inf,
            free=0 if layer in self._full else math.inf,
            evictable=np.concatenate(may_lose).tolist() if may_lose else (),
        )
        held, sides = self._held[layer], AsMeasured(costs)
        chosen = choose_threshold(states.tolist(), self._counts, held, sides, limits, objective)
        self._tau[layer], self.balanced[layer] = chosen


class AsMeasured:
    """Costs of single experts as times of two sides."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs

    def fast_s(self, counts: Iterable[int]) -> float:
        return sum(self._costs.slot_s(count) for count in counts)

    def slow_s(self, counts: Iterable[int]) -> float:
        return sum(self._costs.compute_s(count) for count in counts)


class UtilityPrefetch:
    needs_lookahead = False

    def __init__(self, levels: UtilityLevels) -> None:
        self._levels = levels
        levels.served = True

    def plan(self, routing: Routing, next_layer: int, lookahead_logits: Array | None) -> Sequence[Key]:
        return self._levels.wanted()

    def observe(self, routing: Routing) -> None:
        pass


class Telling:
    """A miss policy that also tells levels what it compares."""

    def __init__(self, miss: MissPolicy, levels: UtilityLevels) -> None:
        self._miss, self._levels = miss, levels
        self.needs_logits, self.lossy, self.computes = miss.needs_logits, miss.lossy, miss.computes

    def decide(self, routing: Routing, resident: frozenset[int], late: frozenset[int], costs: Costs) -> MissDecision:
        self._levels.heard(costs)
        return self._miss.decide(routing, resident, late, costs)
