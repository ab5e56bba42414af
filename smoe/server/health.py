"""Whether a server can be asked: what /health says."""

from starlette.responses import JSONResponse

from smoe.server.async_engine import AsyncEngine


def phase_of(engine: AsyncEngine) -> tuple[str, str | None]:
    """loading, running, restarting, draining, failed or closed, and why."""
    health = engine.health()
    if engine.phase != "running" or health is None:
        return engine.phase, engine.failure
    return health.phase, health.detail


def health(engine: AsyncEngine) -> JSONResponse:
    """200 while requests are taken; else 503, and why: loading, draining, failed, closed.

    While lost devices are replaced it is 200 too, and says `degraded`: requests are taken, wait, and go on where they
    were, with the same tokens, so nothing is lost by sending them here. A 503 would make balancers take the server out
    for a fault that it mends itself, or kill it in the middle of mending. Who wants to route around it reads `status`.
    """
    phase, why = phase_of(engine)
    if phase in ("running", "restarting"):
        known = {} if why is None else {"detail": why}
        status = "ok" if phase == "running" else "degraded"
        return JSONResponse({"status": status, "in_flight": engine.num_in_flight, **known})
    error = {"status": phase, **({} if why is None else {"error": why})}
    return JSONResponse(error, 503, {"Retry-After": "1"})
