"""Cross-entropy optimisation of a layer's placement, then swap refinement of the best that it found."""

from dataclasses import dataclass, field

import numpy as np

from smoe.clustering.batch_value import BatchValue
from smoe.clustering.incumbent import Incumbent
from smoe.clustering.polish import Polish
from smoe.clustering.problem import Array, Balance, LayerProblem, LayerSolution
from smoe.clustering.sampling import align, draw, entropy, even_chance, frequencies
from smoe.clustering.settle import trade_experts
from smoe.clustering.sketch import sketch
from smoe.clustering.units import Units, units_of
from smoe.core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossEntropyConfig:
    """A round draws `samples` placements and learns from the best `elite_share` of them with weight `smoothing`.

    It ends after `rounds`, after `patience` rounds without a better one, or when no unit's choice has more than
    `entropy` nats. The search looks at about `rows` rows. With `refine` it ends with swaps: the best `refined` of its
    placements, then `kicks` times the best of all after `kick_swaps` random swaps, and at last all rows. `starts`
    random placements, made better by swaps, may be among the first round's; they take its variety, and with many
    experts a worse end has been seen.
    """

    samples: int = 128
    elite_share: float = 0.1
    smoothing: float = 0.7
    rounds: int = 40
    patience: int = 5
    entropy: float = 0.05
    rows: int = 4096
    refine: bool = True
    starts: int = 0
    refined: int = 4
    kicks: int = 24
    kick_swaps: int = 4

    def __post_init__(self) -> None:
        for name, least in (("samples", 2), ("rounds", 1), ("patience", 1), ("rows", 2)):
            if getattr(self, name) < least:
                raise ConfigError(name, getattr(self, name), f"{least} or more")
        for name in ("starts", "refined", "kicks", "kick_swaps", "entropy"):
            if getattr(self, name) < 0:
                raise ConfigError(name, getattr(self, name), "0 or more")
        for name in ("elite_share", "smoothing"):
            if not 0.0 < getattr(self, name) <= 1.0:
                raise ConfigError(name, getattr(self, name), "above 0, up to 1")


@dataclass(frozen=True, slots=True)
class CrossEntropy:
    config: CrossEntropyConfig = field(default_factory=CrossEntropyConfig)
    name: str = "cross-entropy"

    def solve(self, problem: LayerProblem, balance: Balance, seed: int) -> LayerSolution:
        config = self.config
        rng = np.random.default_rng(seed)
        units = units_of(problem)
        small = sketch(units, config.rows, rng)
        best = Incumbent(problem, units, balance)
        polish = Polish(small, best.limit, best.fine)
        found = self._starts(small, polish, rng) if config.refine else []
        found += self._rounds(small, found, best, polish, rng)
        if config.refine:
            self._refine(units, found, best, polish, rng)
        return best.solution()

    def _starts(self, units: Units, polish: Polish, rng: np.random.Generator) -> list[Array]:
        placed = draw(units, even_chance(units), self.config.starts, polish.limit, rng)
        return [polish.descend(device) for device in placed]

    def _rounds(
        self, units: Units, starts: list[Array], best: Incumbent, polish: Polish, rng: np.random.Generator
    ) -> list[Array]:
        """The cross-entropy rounds; returns the last round's elites, the best first."""
        config = self.config
        value = BatchValue(units, polish.fine, polish.limit)
        chance, like = even_chance(units), None
        elites = np.array(starts, dtype=np.int64).reshape(len(starts), units.num_units)
        scores = value(elites) if starts else np.zeros(0)
        num_elites = max(1, round(config.elite_share * config.samples))
        stale, best_score = 0, -np.inf
        for _ in range(config.rounds):
            placed = np.concatenate([elites, draw(units, chance, config.samples, polish.limit, rng)])
            scores = np.concatenate([scores, value(placed[len(scores) :])])
            chosen = np.argsort(-scores, kind="stable")[:num_elites]
            like = placed[chosen[0]] if like is None else like
            elites, scores = align(units, placed[chosen], like), scores[chosen]
            like = elites[0]
            stale = 0 if scores[0] > best_score else stale + 1
            best_score = max(best_score, float(scores[0]))
            if stale == 0:
                best.offer(polish.within_limit(elites[0]))
            best.end_round()
            chance = (1 - config.smoothing) * chance + config.smoothing * frequencies(units, elites)
            if stale >= config.patience or entropy(chance) < config.entropy:
                break
        return list(elites)

    def _refine(
        self, units: Units, found: list[Array], best: Incumbent, polish: Polish, rng: np.random.Generator
    ) -> None:
        config = self.config
        distinct = {device.tobytes(): device for device in [best.device, *found]}
        ranked = sorted(distinct.values(), key=polish.key)[: config.refined]
        candidates = sorted((polish.descend(device) for device in ranked), key=polish.key)
        if candidates:
            candidates.insert(0, polish.kick(candidates[0], config.kicks, config.kick_swaps, rng))
            best.offer(candidates[0])
            best.end_round()
        whole = Polish(units, polish.limit, polish.fine)
        for device in [best.device, *candidates[:2]]:
            best.offer(whole.descend(device))
        trade_experts(best, units, rng)
        best.end_round()
        best.end_round()
