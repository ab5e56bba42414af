"""What a server says it serves, from /v1/models."""

import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

from smoe.bench.slo.client import Target
from smoe.core.errors import ConfigError, StartupError


@dataclass(frozen=True, slots=True)
class Card:
    """`max_model_len` is told by smoe and vLLM, None by others."""

    name: str
    max_model_len: int | None


def read_card(base_url: str, name: str | None, api_key: str | None) -> Card:
    """Of the model `name`, or of the first. A server without the list is taken at `name`'s word. Raises ConfigError or
    StartupError."""
    target = Target(base_url=base_url, model=name or "", api_key=api_key)
    if not target.root.startswith(("http://", "https://")):
        raise ConfigError("base_url", base_url, "http://HOST:PORT or https://HOST, with or without /v1")
    request = urllib.request.Request(f"{target.root}/v1/models", headers=target.headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            cards = _cards(response.read())
    except urllib.error.HTTPError as error:
        if error.code == 404 and name is not None:
            return Card(name, None)
        raise StartupError(f"{target.root}/v1/models: HTTP {error.code}") from error
    except OSError as error:
        raise StartupError(f"{target.root}: {getattr(error, 'reason', error)}") from error
    if name is None and not cards:
        raise ConfigError("model", name, f"a name; {target.root} lists none")
    chosen = next((card for card in cards if card.name == name), None) if name is not None else cards[0]
    return chosen or Card(name or "", None)


def _cards(body: bytes) -> list[Card]:
    try:
        listed: Any = json.loads(body).get("data", [])
    except (ValueError, AttributeError):
        return []
    found = [(card.get("id"), card.get("max_model_len")) for card in listed if isinstance(card, dict)]
    return [Card(str(name), length if isinstance(length, int) else None) for name, length in found if name]
