"""What serving a missing expert costs: declared, or measured as it happens. Torch-free."""

from dataclasses import dataclass

WEIGHT = 0.2  # of a new measurement
FADING = 0.995  # of what was not measured


@dataclass(frozen=True, slots=True)
class FixedCosts:
    """`row_s` is what one row of one expert takes where the expert is, `slot_row_s` from its slot."""

    fetch_s: float = 0.0
    row_s: float = 0.0
    slot_row_s: float = 0.0

    def compute_s(self, rows: int) -> float:
        return rows * self.row_s

    def slot_s(self, rows: int) -> float:
        return rows * self.slot_row_s


class MeasuredCosts:
    """Moving averages. All start at 0, so the first missing expert is fetched, the next one computed, and from then on
    both are known. Whenever one of these is measured the other fades: what looked too dear, perhaps because of one bad
    measurement, is tried again after some hundred passes.

    A row's cost is kept by powers of two of how many rows an expert has: many share the reading of its weights.
    """

    def __init__(self) -> None:
        self.fetch_s = 0.0
        self._row_s: dict[int, float] = {}
        self._slot_row_s: dict[int, float] = {}

    def compute_s(self, rows: int) -> float:
        """By the nearest number of rows that was measured."""
        return _of_rows(self._row_s, rows)

    def slot_s(self, rows: int) -> float:
        """Likewise."""
        return _of_rows(self._slot_row_s, rows)

    def fetched(self, transfers: int, busy_s: float) -> None:
        """The link was busy for `busy_s` with so many transfers."""
        if transfers:
            self.fetch_s = _moved(self.fetch_s, busy_s / transfers)
            self._row_s = {bits: FADING * row_s for bits, row_s in self._row_s.items()}

    def computed(self, experts: int, rows: int, elapsed_s: float) -> None:
        """`rows` of `experts`, together, were computed in place."""
        _measured(self._row_s, experts, rows, elapsed_s)
        self.fetch_s *= FADING

    def computed_from_slots(self, experts: int, rows: int, elapsed_s: float) -> None:
        """Likewise. Nothing fades: it is not one of two ways to answer a miss."""
        _measured(self._slot_row_s, experts, rows, elapsed_s)


def _of_rows(row_s: dict[int, float], rows: int) -> float:
    if not row_s:
        return 0.0
    wanted = rows.bit_length()
    return rows * row_s[min(row_s, key=lambda bits: abs(bits - wanted))]


def _measured(row_s: dict[int, float], experts: int, rows: int, elapsed_s: float) -> None:
    bits = max(1, rows // experts).bit_length()
    row_s[bits] = _moved(row_s.get(bits, 0.0), elapsed_s / rows)


def _moved(average: float, measured: float) -> float:
    return average + WEIGHT * (measured - average) if average else measured
