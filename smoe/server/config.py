"""ServerConfig: where a server listens, who may call it, and how much of anything it takes."""

from dataclasses import dataclass

from smoe.core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """`served_model_name` is what clients call the model; None: the name of its folder. With `api_key` every route but
    /health wants it as a bearer token.

    `max_body_bytes` of a request; `max_queue` answers in flight, running and waiting together (a request for n answers
    counts n), beyond which requests get 429; `request_timeout_s` from the arrival of a request to its last token;
    `drain_s` for answers in flight once the server is asked to end.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    served_model_name: str | None = None
    api_key: str | None = None
    max_body_bytes: int = 4 << 20
    max_queue: int = 256
    request_timeout_s: float = 600.0
    drain_s: float = 30.0

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError("port", self.port, "0 to 65535; 0 takes a free one")
        if self.api_key == "" or (self.api_key is not None and not self.api_key.isascii()):
            raise ConfigError("api_key", "***", "ASCII characters, at least one")
        if self.served_model_name == "":
            raise ConfigError("served_model_name", self.served_model_name, "at least one character")
        for name in ("max_body_bytes", "max_queue"):
            if getattr(self, name) < 1:
                raise ConfigError(name, getattr(self, name), "integer >= 1")
        for name in ("request_timeout_s", "drain_s"):
            if not 0 < getattr(self, name) < 1e6:
                raise ConfigError(name, getattr(self, name), "seconds above 0")
