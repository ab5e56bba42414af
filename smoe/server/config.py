"""ServerConfig: a ServeConfig (smoe.core.serve_config), and the key that callers have to know."""

from dataclasses import dataclass

from smoe.core.errors import ConfigError
from smoe.core.serve_config import ServeConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig(ServeConfig):
    """With `api_key` every route but /health wants it as a bearer token. It is no field of a deployment, which is
    printed and stored."""

    api_key: str | None = None

    def __post_init__(self) -> None:
        ServeConfig.__post_init__(self)  # a class with slots is another one than super() would look for
        if self.api_key == "" or (self.api_key is not None and not self.api_key.isascii()):
            raise ConfigError("api_key", "***", "ASCII characters, at least one")
