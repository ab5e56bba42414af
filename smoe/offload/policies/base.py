"""What most eviction policies leave alone."""

from collections.abc import Sequence

from smoe.offload.policies.protocols import Routing


class Deaf:
    """Hears only of slots got, used and lost; a policy overrides what else it listens to."""

    def begin_epoch(self) -> None:
        pass

    def begin_layer(self, layer: int) -> None:
        pass

    def demand(self, routing: Routing) -> None:
        pass

    def confirm(self, layer: int, experts: Sequence[int]) -> None:
        pass
