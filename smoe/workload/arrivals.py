"""When requests arrive: gaps drawn from a distribution, equal ones, or a trace's own."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self, cast

import numpy as np

from smoe.core.errors import ConfigError

Kind = Literal["poisson", "gamma", "constant", "trace"]
FORMS = "poisson, gamma:CV (CV the gaps' standard deviation over their mean), constant or trace"


@dataclass(frozen=True, slots=True)
class ArrivalProcess:
    """`cv` is the coefficient of variation of the gaps: 1 is Poisson, below it more regular, above it burstier."""

    kind: Kind
    cv: float = 1.0

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ConfigError."""
        kind, colon, value = text.partition(":")
        if kind not in ("poisson", "gamma", "constant", "trace") or bool(colon) != (kind == "gamma"):
            raise ConfigError("arrival", text, FORMS)
        if not colon:
            return cls(cast(Kind, kind))
        try:
            cv = float(value)
        except ValueError:
            cv = float("nan")
        if not 0 < cv <= 100:
            raise ConfigError("arrival", text, "gamma:CV, CV above 0 up to 100")
        return cls("gamma", cv)

    def times_s(self, count: int, rate: float | None, seed: int, own_s: Sequence[float] = ()) -> list[float]:
        """`count` times from 0 on, `rate` a second on average. Equal seeds give equal patterns at every rate, only
        faster or slower, so that rates are compared by the same bursts.

        `own_s` are a trace's times, which `trace` stretches to the rate; None leaves them. Raises ConfigError.
        """
        if rate is not None and not 0 < rate < float("inf"):
            raise ConfigError("rate", rate, "requests a second, above 0")
        if self.kind == "trace":
            return _stretched(own_s, count, rate)
        if rate is None:
            raise ConfigError("rate", rate, f"requests a second; only a trace has its own, not {self.kind}")
        gaps = self._gaps(count - 1, np.random.default_rng(seed)) / rate
        return [0.0, *np.cumsum(gaps).tolist()]

    def _gaps(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Of mean 1."""
        if self.kind == "constant":
            return np.ones(count)
        shape = 1 / self.cv**2
        return rng.gamma(shape, 1 / shape, count)

    def __str__(self) -> str:
        return f"gamma:{self.cv:g}" if self.kind == "gamma" else self.kind


def _stretched(own_s: Sequence[float], count: int, rate: float | None) -> list[float]:
    if len(own_s) < count:
        raise ConfigError("arrival", "trace", f"a request trace with {count} rows; there are {len(own_s)}")
    times = [at - own_s[0] for at in own_s[:count]]
    if rate is None:
        return times
    if times[-1] <= 0:
        raise ConfigError("rate", rate, "a trace whose rows arrive at different times, to stretch it")
    factor = (count - 1) / rate / times[-1]
    return [at * factor for at in times]
