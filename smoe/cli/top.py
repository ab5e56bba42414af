"""`smoe top`: what a running server does, on the terminal."""

import http.client
import os
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Annotated, Any

import typer

from smoe.cli import options
from smoe.cli.values import number
from smoe.core.errors import ConfigError

if TYPE_CHECKING:
    from smoe.metrics.scrape import Change, Scrape

NAME = "top"
EXAMPLE = options.example("smoe top http://127.0.0.1:8000")
KEY_VARIABLE = "SMOE_API_KEY"
_ANSWER_S = 10.0


def command(
    url: Annotated[str, typer.Argument(metavar="[URL]", help="Of the server.")] = "http://127.0.0.1:8000",
    interval: Annotated[str, typer.Option("--interval", metavar="S", help="Seconds between two looks.")] = "2",
    once: Annotated[
        bool, typer.Option("--once", help="Print one table, of all that the server has counted so far, and end.")
    ] = False,
    api_key: Annotated[
        str | None, typer.Option("--api-key", metavar="KEY", help=f"The server's; default: that in {KEY_VARIABLE}.")
    ] = None,
) -> int:
    """Watch a server of `smoe serve`: rates of the last interval, from its /metrics. Ctrl-C ends it."""
    every_s = number("interval", interval) or 0.0
    if not 0.1 <= every_s <= 3600:
        raise ConfigError("interval", interval, "0.1 to 3600 seconds")
    key = api_key or os.environ.get(KEY_VARIABLE)
    now = look(url, key)
    change = _change(now.beginning(), now)
    if once:
        from smoe.cli.top_view import rows

        for row in rows(change, url):
            print(f"{row.name:<9} {row.text}")
        return 0
    return _watch(url, key, every_s, change)


def look(url: str, key: str | None = None) -> "Scrape":
    """Raises ConfigError for an address at which no smoe server answers."""
    from smoe.metrics.scrape import Scrape

    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    try:
        request = urllib.request.Request(f"{url.rstrip('/')}/metrics", headers=headers)
        with urllib.request.urlopen(request, timeout=_ANSWER_S) as answer:
            return Scrape.parse(answer.read().decode(), time.time())
    except urllib.error.HTTPError as error:
        if error.code == 401:
            raise ConfigError("api_key", "***" if key else None, "that of the server") from error
        raise ConfigError("url", url, f"a server that has /metrics: {error}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise ConfigError("url", url, f"one at which `smoe serve` listens: {reason}") from error


def _change(before: "Scrape", now: "Scrape") -> "Change":
    from smoe.metrics.scrape import Change

    return Change(before if now.counts_on_from(before) else now.beginning(), now)


def _watch(url: str, key: str | None, every_s: float, change: "Change") -> int:
    """Until Ctrl-C, or until the server is gone, which it says in one line."""
    from rich.live import Live

    with Live(_table(change, url), auto_refresh=False) as live:
        while True:
            time.sleep(every_s)
            change = _change(change.now, look(url, key))
            live.update(_table(change, url), refresh=True)


def _table(change: "Change", url: str) -> Any:
    from rich.table import Table
    from rich.text import Text

    from smoe.cli.top_view import rows

    table = Table(show_header=False, box=None)
    table.add_column(style="bold")
    table.add_column()
    for row in rows(change, url):
        table.add_row(row.name, Text(row.text))
    return table
