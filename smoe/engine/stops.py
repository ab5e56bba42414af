"""Stop strings on text that arrives in pieces."""


class StopMatcher:
    """Lets text through up to the first stop string, and never the start of one that may still complete.

    The stop string that completes first ends the text; of two that complete at the same character, the longer one.
    So the outcome does not depend on how the text was cut into pieces.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._longest = max(map(len, stops), default=0)
        self._held = ""

    @property
    def is_holding(self) -> bool:
        return bool(self._held)

    def push(self, text: str) -> tuple[str, str | None]:
        """(text that may be shown now, the stop string that matched or None)."""
        if not self._stops or not text:
            return text, None
        buffer = self._held + text
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := buffer.find(stop)) >= 0]
        if found:
            _, at, stop = min(found)
            self._held = ""
            return buffer[:at], stop
        keep = self._num_held(buffer)
        self._held = buffer[len(buffer) - keep :]
        return buffer[: len(buffer) - keep], None

    def flush(self) -> str:
        """What was held back, when the text has ended without a match."""
        held, self._held = self._held, ""
        return held

    def _num_held(self, buffer: str) -> int:
        """Length of the longest end of `buffer` that begins a stop string."""
        for length in range(min(self._longest - 1, len(buffer)), 0, -1):
            end = buffer[-length:]
            if any(stop.startswith(end) for stop in self._stops):
                return length
        return 0
