"""What the benchmark needs besides its client: prompts, a server of its own, another server's list of models."""

import json

import pytest

from smoe.bench.slo.card import Card, read_card
from smoe.bench.slo.child import own_server
from smoe.bench.slo.corpus import SETS, corpus
from smoe.bench.slo.orders import orders_of
from smoe.core.errors import ConfigError, StartupError
from smoe.workload.arrivals import ArrivalProcess
from smoe.workload.plan import made_up, timed
from tests.bench.test_slo_study import running
from tests.bench.toy_server import Caller


def encode(text: str) -> list[int]:
    return list(text.encode())


def test_every_set_of_prompts_is_a_stream_of_real_text() -> None:
    texts = {name: bytes(corpus(name, encode)) for name in SETS}
    assert b"Assistant:" in texts["dialogue"]
    assert b"def " in texts["code"]
    assert texts["gsm8k"].startswith("Janet’s ducks".encode())
    for name in ("prose", "dialogue", "code", "maths"):
        assert texts[name][:512] in texts["mixed"][:2048]
    assert len(texts["mixed"]) == sum(len(texts[name]) for name in ("prose", "dialogue", "code", "maths"))
    with pytest.raises(ConfigError, match="prompts: 'poems'"):
        corpus("poems", encode)


def test_orders_are_the_plan_with_prompts() -> None:
    plan = timed(made_up(5, input_len=7, output_len=3), ArrivalProcess("constant"), 2.0, 0)
    orders = orders_of(plan, range(100), 1)
    assert [(order.at_s, len(order.prompt), order.max_tokens) for order in orders] == [(i / 2, 7, 3) for i in range(5)]
    as_text = orders_of(plan, range(100), 1, decode=lambda ids: ",".join(map(str, ids)))
    assert [tuple(map(int, str(order.prompt).split(","))) for order in as_text] == [order.prompt for order in orders]


def test_a_server_that_does_not_start_says_why() -> None:
    with pytest.raises(StartupError, match="no/such: no such model folder"), own_server(["--model", "no/such"]):
        pass


def test_the_list_of_models() -> None:
    listed = {"data": [{"id": "a", "max_model_len": 64}, {"id": "b"}]}
    seen: list[str | None] = []

    async def play(caller: Caller) -> None:
        seen.append(caller.headers.get("authorization"))
        await caller.head(kind="application/json")
        await caller.raw(json.dumps(listed).encode())

    with running(play) as url:
        assert read_card(url, None, "key") == Card("a", 64)
        assert read_card(f"{url}/v1/", "b", None) == Card("b", None)
        assert read_card(url, "c", None) == Card("c", None)
    assert seen == ["Bearer key", None, None]


def test_servers_without_a_list_and_none_at_all() -> None:
    async def play(caller: Caller) -> None:
        await caller.head("404 Not Found")

    with running(play) as url:
        assert read_card(url, "mine", None) == Card("mine", None)
        with pytest.raises(StartupError, match="/v1/models: HTTP 404"):
            read_card(url, None, None)
    with pytest.raises(StartupError, match=r"127\.0\.0\.1:9: .*refused"):
        read_card("http://127.0.0.1:9", "m", None)
    with pytest.raises(ConfigError, match="base_url: 'localhost:80'"):
        read_card("localhost:80", "m", None)
