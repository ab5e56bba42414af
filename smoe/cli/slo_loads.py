"""Which loads are offered: rates, a search for one, or requests kept in flight."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from smoe.cli.slo_options import listed, positive, whole
from smoe.cli.values import no_effect
from smoe.core.errors import ConfigError

if TYPE_CHECKING:
    from smoe.bench.slo.study import Offered

AUTO, OWN = "auto", "own"


@dataclass(frozen=True, slots=True)
class Loads:
    """`offers` None: search."""

    offers: "list[Offered] | None"
    start_rate: float = 1.0
    tolerance: float = 0.1


def loads(
    rates: str | None,
    start_rate: str | None,
    tolerance: str | None,
    concurrency: str | None,
    arrival: str | None,
    *,
    searchable: bool,
) -> Loads:
    from smoe.bench.slo.study import Offered

    for name, value in (("rates", rates), ("arrival", arrival)):
        if concurrency is not None and value is not None:
            raise ConfigError(name, value, "not with --max-concurrency, which sends when an answer has ended")
    searches = concurrency is None and rates in (None, AUTO)
    for name, value in (("start_rate", start_rate), ("tolerance", tolerance)):
        if value is not None and not searches:
            raise no_effect(name, value, "--rates auto")
    if concurrency is not None:
        numbers = [whole("max_concurrency", part) for part in listed("max_concurrency", concurrency)]
        return Loads([Offered(concurrency=number) for number in sorted(numbers)])
    if searches:
        if not searchable:
            raise ConfigError("rates", rates or AUTO, "needs --goodput, or rates to sweep, as in --rates 1,2,4")
        return Loads(None, positive("start_rate", start_rate or "1"), positive("tolerance", tolerance or "0.1"))
    parts = listed("rates", rates or "")
    if OWN in parts and arrival != "trace":
        raise ConfigError("rates", OWN, "only with --arrival trace: nothing else has a rate of its own")
    own = [Offered()] if OWN in parts else []
    return Loads([*own, *(Offered(rate=rate) for rate in sorted(positive("rates", p) for p in parts if p != OWN))])
