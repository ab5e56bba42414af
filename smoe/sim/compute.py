"""What computing takes, in virtual time."""

from dataclasses import dataclass

from smoe.core.errors import ConfigError
from smoe.sim.units import seconds


@dataclass(frozen=True, slots=True)
class ComputeModel:
    """`layer_s` before the experts of a layer can be asked for, `row_s` for each row of each expert. Declared."""

    layer_s: float = 0.0
    row_s: float = 0.0

    @classmethod
    def parse(cls, text: str, field: str = "compute") -> "ComputeModel":
        """`LAYER+ROW`, as 0.3ms+50us. Raises ConfigError."""
        layer, plus, row = text.partition("+")
        if not plus:
            raise ConfigError(field, text, "seconds a layer and seconds an expert row, as 0.3ms+50us")
        return cls(seconds(field, layer), seconds(field, row))
