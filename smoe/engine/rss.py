"""Physical memory of this process."""

import resource
from pathlib import Path
from typing import NamedTuple


class Rss(NamedTuple):
    now_bytes: int
    peak_bytes: int

    def plus(self, more: "Rss") -> "Rss":
        return Rss(self.now_bytes + more.now_bytes, self.peak_bytes + more.peak_bytes)


def read_rss() -> Rss:
    """What this program holds, and the most that it has held since it started.

    The peak is Linux's VmHWM where there is one: getrusage also counts the process that forked this one. Elsewhere
    both are the peak.
    """
    status = Path("/proc/self/status")
    if not status.exists():
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return Rss(peak, peak)
    lines = (line.partition(":") for line in status.read_text().splitlines())
    found = {name: value for name, _, value in lines if name in ("VmHWM", "VmRSS")}
    now, peak = (int(found[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM"))
    return Rss(now, peak)


def peak_rss_bytes() -> int:
    return read_rss().peak_bytes
