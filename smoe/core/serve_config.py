"""ServeConfig: where a model is served, by how many engines, and how much of anything the server takes."""

from dataclasses import dataclass
from typing import Literal, get_args

from smoe.core.errors import ConfigError

Ingress = Literal["ray-serve", "direct"]
INGRESSES: tuple[Ingress, ...] = get_args(Ingress)
MAX_REPLICAS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig:
    """`served_model_name` is what clients call the model; None: the name of its folder. Each of `replicas` is a server
    with an engine of its own, and requests are dealt to them; the limits below hold for each. By the `ingress`
    ray-serve, Ray Serve listens, deals, and replaces replicas; direct: the one replica listens itself, which costs less
    time a token.

    `max_body_bytes` of a request; `max_queue` answers in flight, running and waiting together (a request for n answers
    counts n), beyond which requests get 429; `request_timeout_s` from the arrival of a request to its last token;
    `drain_s` for answers in flight once the server is asked to end. `metrics_reset` lets clients set the counts of
    /metrics to zero.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    served_model_name: str | None = None
    replicas: int = 1
    ingress: Ingress = "ray-serve"
    max_body_bytes: int = 4 << 20
    max_queue: int = 256
    request_timeout_s: float = 600.0
    drain_s: float = 30.0
    metrics_reset: bool = False

    def __post_init__(self) -> None:
        if not self.host:
            raise ConfigError("host", self.host, "an address to listen on, as 127.0.0.1")
        if not 0 <= self.port <= 65535:
            raise ConfigError("port", self.port, "0 to 65535; 0 takes a free one")
        if self.served_model_name == "":
            raise ConfigError("served_model_name", self.served_model_name, "at least one character")
        if not 1 <= self.replicas <= MAX_REPLICAS:
            raise ConfigError("replicas", self.replicas, f"1 to {MAX_REPLICAS}")
        if self.ingress not in INGRESSES:
            raise ConfigError("ingress", self.ingress, f"one of {', '.join(INGRESSES)}")
        if self.ingress == "direct" and self.replicas > 1:
            raise ConfigError("replicas", self.replicas, "1 with ingress direct: only ray-serve deals requests")
        if self.metrics_reset and self.replicas > 1:
            limit = "false with several replicas: a request reaches one of them"
            raise ConfigError("metrics_reset", self.metrics_reset, limit)
        for name in ("max_body_bytes", "max_queue"):
            if getattr(self, name) < 1:
                raise ConfigError(name, getattr(self, name), "integer >= 1")
        for name in ("request_timeout_s", "drain_s"):
            if not 0 < getattr(self, name) < 1e6:
                raise ConfigError(name, getattr(self, name), "seconds above 0")
