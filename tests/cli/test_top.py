"""`smoe top` against a server that says what it is told to."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

from smoe.cli import top
from smoe.cli.top_view import rows
from smoe.metrics.scrape import Change, Scrape
from tests.metrics.pages import STATS, page
from tests.metrics.test_scrape import answered


class Server:
    def __init__(self) -> None:
        self.pages: list[str] = []
        self.status = 200
        self.keys: list[str | None] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.keys.append(self.headers["authorization"])
                self.send_response(outer.status if self.path == "/metrics" else 404)
                self.end_headers()
                self.wfile.write(outer.pages.pop(0).encode() if outer.pages else b"")

            def log_message(self, *_: Any) -> None:
                return

        self._http = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


def test_once_prints_what_was_counted(
    server: Server, smoe: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(top, "time", SimpleNamespace(time=lambda: 1010.0))
    server.pages = [page(requests=answered(0.003, 0.003))]
    done = smoe("top", server.url, "--once", "--api-key", "secret")
    assert (done.code, done.err, server.keys) == (0, "", ["Bearer secret"])
    shown = {line.split(maxsplit=1)[0]: line.split(maxsplit=1)[1] for line in done.out.splitlines()}
    assert shown["server"].startswith(f"m at {server.url}, running, since 01-01 00:16 UTC")
    assert shown["requests"] == "0.20/s · running 2 · waiting 3 · failed 0 · HTTP errors 1"
    assert shown["TTFT"] == "p50 3.5 ms · p90 4.7 ms"
    assert shown["TPOT"] == "p50 - · p90 -"
    assert shown["tokens"] == "5.00/s · prompts 10/s"
    assert shown["memory"] == "KV cache 25 % · resident 8 MB"
    assert shown["experts"].startswith("hits 60 % · waiting 25 % of time")
    assert shown["links"] == "disk 6.4 MB/s 50 % busy"
    assert shown["prefetch"] == "4.00/s · on time 50 % · late 25 % · wasted 10 %"
    assert shown["drafts"] == "75 % kept · 2.00/s drafted · pauses 0"
    local, spent = "local choices 75 %", "in exchanges 20 % of the time"
    assert shown["devices"] == f"2 · {local} · {spent} · devices 12.8 B/s · network 2 MB/s"
    assert shown["balance"].startswith("most chosen expert over mean: 2.75 · layer 2 4.00")


def test_an_interval_that_ends_more_prefetches_than_it_begins_has_shares_of_a_whole() -> None:
    ended = replace(STATS.experts, prefetched=44, prefetch_used=29, late=11)
    change = Change(Scrape.parse(page(), 0.0), Scrape.parse(page(engine=replace(STATS, experts=ended)), 2.0))
    shown = {row.name: row.text for row in rows(change, "http://server")}
    assert shown["prefetch"] == "2.00/s · on time 90 % · late 10 % · wasted 0 %"


def test_rows_fit_a_terminal_of_80_columns() -> None:
    change = Change(Scrape.parse(page(), 0.0), Scrape.parse(page(), 2.0))
    long = {row.name: len(row.text) for row in rows(change, "http://127.0.0.1:8000") if len(row.text) > 80 - 11}
    assert set(long) <= {"devices", "balance"}


def test_what_a_server_does_not_have_has_no_row(server: Server, smoe: Callable[..., Any]) -> None:
    server.pages = [page(engine=None, phase="loading")]
    done = smoe("top", server.url, "--once")
    assert "loading" in done.out
    assert not [word for word in ("experts", "drafts", "devices", "tokens") if word in done.out]


def test_the_live_view_shows_intervals_until_the_server_is_gone(
    server: Server, smoe: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter([1010.0, 1012.0, 1014.0, 1016.0])
    waited: list[float] = []
    changes: list[Any] = []
    monkeypatch.setattr(top, "time", SimpleNamespace(time=lambda: next(now), sleep=waited.append))
    shown = top._table
    monkeypatch.setattr(top, "_table", lambda change, url: changes.append(change) or shown(change, url))
    later = page(engine=replace(STATS, generated_tokens=60))
    server.pages = [page(), later, page(since_s=1013.0)]
    done = smoe("top", server.url, "--interval", "2")  # the fourth look finds no page
    assert done.code == 2
    assert done.err.startswith(f"error: url: '{server.url}' (one at which `smoe serve` listens: ")
    assert waited == [2.0, 2.0, 2.0]
    # All that was counted, then two seconds, then a server that has begun anew.
    assert [change.seconds for change in changes] == [10.0, 2.0, 1.0]
    assert changes[1].rate("generation_tokens_total") == 5.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["http://127.0.0.1:1"], "url: 'http://127.0.0.1:1' (one at which `smoe serve` listens: [Errno 111]"),
        (["nonsense"], "url: 'nonsense' (one at which `smoe serve` listens: unknown url type"),
        (["--interval", "0"], "interval: '0' (0.1 to 3600 seconds)"),
    ],
)
def test_one_line_says_what_is_wrong(smoe: Callable[..., Any], arguments: list[str], message: str) -> None:
    done = smoe("top", *arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"error: {message}")
    assert len(done.err.splitlines()) == 1


@pytest.mark.parametrize(("status", "message"), [(401, "api_key: None (that of the server)"), (404, "url: 'http")])
def test_what_the_server_refuses(server: Server, smoe: Callable[..., Any], status: int, message: str) -> None:
    server.status, server.pages = status, [""]
    done = smoe("top", server.url, "--once")
    assert done.code == 2
    assert done.err.startswith(f"error: {message}")
