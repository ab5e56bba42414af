"""Which server a load goes to: one that runs already, or one of our own."""

import os
import shlex
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from smoe.cli.values import no_effect
from smoe.core.errors import ConfigError

if TYPE_CHECKING:
    from smoe.engine.tokenizer import Tokenizer

KEY_VARIABLE = "SMOE_API_KEY"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """`name` is the model's at `base_url`; `folder` has the tokenizer; `flags` are those of our own server."""

    base_url: str | None
    flags: tuple[str, ...]
    name: str | None
    folder: str
    api_key: str | None
    as_text: bool

    @property
    def described(self) -> str:
        return self.base_url or shlex.join(["smoe", "serve", *self.flags])

    def open(self) -> AbstractContextManager[str]:
        from smoe.bench.slo.child import own_server

        return own_server(self.flags) if self.base_url is None else nullcontext(self.base_url)

    def load_tokenizer(self) -> "Tokenizer":
        from smoe.engine.tokenizer import load_tokenizer
        from smoe.models.loading.config import model_folder

        found = load_tokenizer(model_folder(self.folder))
        if found is None:
            raise ConfigError("tokenizer", self.folder, "a folder with a tokenizer")
        return found


def place(
    base_url: str | None,
    serve: str | None,
    model: str | None,
    api_key: str | None,
    endpoint: str,
    tokenizer: str | None,
) -> Place:
    if endpoint not in ("completions", "chat"):
        raise ConfigError("endpoint", endpoint, "completions or chat")
    if base_url is None:
        for name, value in (("api_key", api_key), ("tokenizer", tokenizer)):
            if value is not None:
                raise no_effect(name, "..." if name == "api_key" else value, "--base-url")
        folder = model or "builtin"
        flags = ("--model", folder, *shlex.split("--in-process" if serve is None else serve))
        as_text = endpoint == "chat"
        return Place(base_url=None, flags=flags, name=None, folder=folder, api_key=None, as_text=as_text)
    if serve is not None:
        raise ConfigError("serve", serve, "not with --base-url, a server that runs already")
    if tokenizer is not None and endpoint == "chat":
        raise ConfigError("tokenizer", tokenizer, "not with --endpoint chat, whose prompts go out as text")
    return Place(
        base_url=base_url,
        flags=(),
        name=model,
        folder=tokenizer or "builtin",
        api_key=api_key or os.environ.get(KEY_VARIABLE),
        as_text=tokenizer is None,
    )
