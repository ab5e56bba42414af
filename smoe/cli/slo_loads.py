"""Which loads are offered: rates, a search for one, or requests kept in flight."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from smoe.cli.slo_options import listed, positive, rates_of, whole
from smoe.cli.values import no_effect
from smoe.core.errors import ConfigError

if TYPE_CHECKING:
    from smoe.bench.slo.study import Offered


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
    asked = None if concurrency is not None else rates_of(rates, arrival, searchable=searchable)
    for name, value in (("start_rate", start_rate), ("tolerance", tolerance)):
        if value is not None and (concurrency is not None or asked is not None):
            raise no_effect(name, value, "--rates auto")
    if concurrency is not None:
        numbers = [whole("max_concurrency", part) for part in listed("max_concurrency", concurrency)]
        return Loads([Offered(concurrency=number) for number in sorted(numbers)])
    if asked is None:
        return Loads(None, positive("start_rate", start_rate or "1"), positive("tolerance", tolerance or "0.1"))
    return Loads([Offered(rate=rate) for rate in asked])
