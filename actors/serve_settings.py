"""Ray Serve's settings, which its processes read from their environment. No Ray in here."""

from collections.abc import Mapping

Door = tuple[str, int]
"""Host and port."""

GENERAL = {
    "RAY_SERVE_LOG_TO_STDERR": "0",
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0",
    "RAY_SERVE_PROXY_USE_GRPC": "1",
    "RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH": str(2**31 - 1),
}
"""No output of its processes on ours; a proxy on a busy machine may take a while to start; a chunk crosses no threads
in a replica or proxy, and goes from one to the other by gRPC, which costs half of what Ray's objects do."""

_DIRECT = {
    "RAY_SERVE_ENABLE_DIRECT_INGRESS": "1",
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "0",
    "RAY_SERVE_PORT_QUARANTINE_S": "0",
}
"""A replica listens itself; nobody in front of it has to be told before it ends."""
_FIRST, _BEYOND = "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT", "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT"
_DECIDE = {"RAY_SERVE_ENABLE_DIRECT_INGRESS", "RAY_SERVE_ENABLE_HA_PROXY", "RAY_SERVE_THROUGHPUT_OPTIMIZED"}


def listens_itself(replicas: int, environ: Mapping[str, str], *, local: bool) -> bool:
    """Whether the replica listens at the address asked for, and no proxy: where it is the only one and on this machine,
    unless the user has decided who listens."""
    return local and replicas == 1 and not _DECIDE & environ.keys()


def of_actors(environ: Mapping[str, str], door: Door | None, *, local: bool) -> dict[str, str]:
    """Variables of the controller, and of the replica that listens at `door`. Processes of a local Ray have the general
    ones from us; those of a cluster were there before."""
    found = {} if local else {name: environ.get(name, value) for name, value in GENERAL.items()}
    if door is not None:
        found |= {**_DIRECT, _FIRST: str(door[1]), _BEYOND: str(door[1] + 1)}
    return found
