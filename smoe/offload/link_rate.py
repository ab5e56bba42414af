"""How fast bytes come, as a moving average. Torch-free."""

DECLARED = 12e9
"""Bytes a second, before anything has come."""
KEPT = 0.75


class LinkRate:
    """Of a link that says how many bytes it has carried, and how long it was busy with them, since its start."""

    def __init__(self, declared: float = DECLARED) -> None:
        self.bytes_per_second = declared
        self._nbytes = 0
        self._busy_s = 0.0

    def update(self, nbytes: int, busy_s: float) -> float:
        """What has come since the last time counts a quarter of the average; of the first time, all."""
        new, took = nbytes - self._nbytes, busy_s - self._busy_s
        if new > 0 and took > 0:
            measured = new / took
            average = KEPT * self.bytes_per_second + (1 - KEPT) * measured
            self.bytes_per_second = average if self._nbytes else measured
            self._nbytes, self._busy_s = nbytes, busy_s
        return self.bytes_per_second
