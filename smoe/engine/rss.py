"""Peak memory of this process."""

import resource
from pathlib import Path


def peak_rss_bytes() -> int:
    """The most physical memory this program has held since it started.

    Linux's VmHWM where there is one: getrusage also counts the process that forked this one.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
