"""What computing takes, in virtual time."""

from dataclasses import dataclass

from smoe.core.errors import ConfigError
from smoe.sim.units import seconds


@dataclass(frozen=True, slots=True)
class ComputeModel:
    """`layer_s` before the experts of a layer can be asked for, `row_s` for each row of each expert from its slot, one
    after the other, and `in_place_s` where the expert is kept, by default as long. Further rows of the same expert in a
    pass take `further_row_s` each, by default as long as the first, which has to fetch the weights. Declared."""

    layer_s: float = 0.0
    row_s: float = 0.0
    in_place_s: float | None = None
    further_row_s: float | None = None

    @property
    def in_place_row_s(self) -> float:
        return self.row_s if self.in_place_s is None else self.in_place_s

    def experts_s(self, experts: int, rows: int) -> float:
        """`experts` >= 0 from their slots, which have `rows` rows together."""
        further_s = self.row_s if self.further_row_s is None else self.further_row_s
        return experts * self.row_s + (rows - experts) * further_s

    @classmethod
    def parse(cls, text: str, field: str = "compute") -> "ComputeModel":
        """`LAYER+ROW` or `LAYER+ROW+IN_PLACE_ROW`, as 0.3ms+50us+0.4ms; in place as in a slot if not said. Raises
        ConfigError."""
        parts = text.split("+")
        if len(parts) not in (2, 3):
            limit = (
                "seconds a layer, an expert row and, unless alike, a row in place, as 0.3ms+50us or 0.3ms+50us+0.4ms"
            )
            raise ConfigError(field, text, limit)
        layer_s, row_s, *in_place_s = (seconds(field, part) for part in parts)
        return cls(layer_s, row_s, *in_place_s)
