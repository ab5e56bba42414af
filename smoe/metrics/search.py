"""The highest rate at which a share of requests still meets its objectives."""

from collections.abc import Callable
from dataclasses import dataclass

from smoe.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Trial:
    rate: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """`rate` is the highest tried that met the goal with none below it failing, None when the lowest allowed failed.
    `above` is the lowest tried that failed beyond it, None when none did: then the real limit is higher still."""

    rate: float | None
    above: float | None
    trials: tuple[Trial, ...]


def highest_rate(
    share_at: Callable[[float], float],
    *,
    share: float,
    start: float,
    lowest: float,
    highest: float,
    tolerance: float = 0.1,
) -> Found:
    """Tries `start`, doubles or halves until the goal lies between two rates, then halves their ratio until it is at
    most 1 + `tolerance`. `share_at(rate)` is taken to fall with the rate. Raises ConfigError."""
    if not 0 < lowest <= start <= highest:
        raise ConfigError("rate", start, f"from {lowest:g} to {highest:g}, above 0")
    if not 0 < share <= 1:
        raise ConfigError("percent", share * 100, "above 0, up to 100")
    if tolerance <= 0:
        raise ConfigError("tolerance", tolerance, "above 0")
    trials: list[Trial] = []

    def meets(rate: float) -> bool:
        trials.append(Trial(rate, share_at(rate)))
        return trials[-1].share >= share

    met: float | None = None
    missed: float | None = None
    rate = start
    while met is None or missed is None:
        if meets(rate):
            met = rate
            following = min(rate * 2, highest)
        else:
            missed = rate
            following = max(rate / 2, lowest)
        if following == rate:
            break
        rate = following
    while met is not None and missed is not None and missed / met > 1 + tolerance:
        middle = (met * missed) ** 0.5
        if meets(middle):
            met = middle
        else:
            missed = middle
    return Found(rate=met, above=missed, trials=tuple(trials))
