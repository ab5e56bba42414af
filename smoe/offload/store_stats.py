"""What a store has moved, and over which links."""

from dataclasses import dataclass, replace

from smoe.core.stats import ExpertStats


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkStats:
    """What went over one link since start: `disk` from files into memory, `host` from host memory into slots.

    `busy_s` is the time during which it carried at least one transfer. An `emulated` link was slowed to a declared one.
    """

    name: str
    transfers: int
    nbytes: int
    busy_s: float
    emulated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStats:
    """Counts since start, of reads into slots. `busy_s` is the time during which at least one was in flight.

    Files in `buffered_files` refuse direct reads; they are read through the page cache and dropped from it.
    `links` come in the order in which bytes pass them. A store that keeps experts in memory itself takes up to
    `budget_bytes` for it, and has had `peak_bytes` in use.
    """

    reads: int
    bytes_read: int
    retries: int
    failures: int
    busy_s: float
    direct_files: tuple[str, ...]
    buffered_files: tuple[str, ...]
    links: tuple[LinkStats, ...] = ()
    budget_bytes: int = 0
    peak_bytes: int = 0

    def added_to(self, decided: ExpertStats) -> ExpertStats:
        """With what came for slots, and over each link."""
        links = {link.name: link for link in self.links}
        nothing = LinkStats(name="", transfers=0, nbytes=0, busy_s=0.0)
        disk, host = links.get("disk", nothing), links.get("host", nothing)
        return replace(
            decided,
            bytes_moved=self.bytes_read,
            transfer_s=self.busy_s,
            disk_transfers=disk.transfers,
            disk_bytes=disk.nbytes,
            disk_s=disk.busy_s,
            host_transfers=host.transfers,
            host_bytes=host.nbytes,
            host_s=host.busy_s,
        )
