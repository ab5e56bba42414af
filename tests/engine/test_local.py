import os
import threading

import pytest

from smoe.core.client import EngineHealth
from smoe.core.errors import RequestError
from smoe.core.request import Delta
from smoe.engine.local import LocalClient
from tests.engine.collect import merge, request, run_alone
from tests.engine.fakes import make_client, make_core


def finish(client: LocalClient) -> list[Delta]:
    deltas: list[Delta] = []
    while found := client.poll():
        deltas += found
    return deltas


def test_poll_returns_at_once_when_nothing_is_in_flight() -> None:
    client = make_client()
    assert client.poll() == []
    assert client.poll(timeout_s=1000) == []


def test_deltas_of_several_requests() -> None:
    client = make_client()
    client.submit([request("a", [3], max_tokens=4)])
    client.submit([request("b", [4, 5], max_tokens=6)])
    outcomes = merge(finish(client))
    assert outcomes["a"].token_ids == run_alone(make_core(), [3], max_tokens=4).token_ids
    assert outcomes["b"].token_ids == run_alone(make_core(), [4, 5], max_tokens=6).token_ids
    client.check_integrity()


def test_an_id_is_free_again_after_its_last_delta() -> None:
    client = make_client()
    client.submit([request("a", [3], max_tokens=2)])
    with pytest.raises(RequestError, match="unique among requests in flight"):
        client.submit([request("a", [3])])
    finish(client)
    client.submit([request("a", [3], max_tokens=2)])
    assert merge(finish(client))["a"].reason == "length"


def test_a_refused_batch_leaves_nothing_behind() -> None:
    client = make_client()
    with pytest.raises(RequestError):
        client.submit([request("a", [3]), request("b", [])])
    assert client.poll() == []
    client.submit([request("a", [3], max_tokens=1)])
    assert set(merge(finish(client))) == {"a"}


def test_poll_gives_up_after_its_timeout_and_the_next_one_goes_on() -> None:
    client = make_client(max_num_batched_tokens=2)
    client.submit([request("a", [3] * 10, max_tokens=1)])
    polls = [client.poll(timeout_s=0) for _ in range(5)]
    assert [len(deltas) for deltas in polls] == [0, 0, 0, 0, 1]


def test_abort() -> None:
    client = make_client()
    client.submit([request("a", [3])])
    client.poll()
    client.abort(["a", "unknown"])
    assert merge(client.poll())["a"].reason == "abort"
    assert client.poll() == []


def test_submitting_from_other_threads() -> None:
    client = make_client()

    def submit(name: str) -> None:
        for i in range(10):
            client.submit([request(f"{name}{i}", [3 + i], max_tokens=3)])

    threads = [threading.Thread(target=submit, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    deltas: list[Delta] = []
    while any(thread.is_alive() for thread in threads):
        deltas += client.poll()
    for thread in threads:
        thread.join()
    outcomes = merge(deltas + finish(client))
    assert len(outcomes) == 30
    for name, outcome in outcomes.items():
        assert outcome.token_ids == run_alone(make_core(), [3 + int(name[1:])], max_tokens=3).token_ids


def test_after_shutdown_every_call_raises() -> None:
    client = make_client()
    client.submit([request("a", [3])])
    client.shutdown()
    client.shutdown()
    for call in (
        client.info,
        client.poll,
        client.stats,
        lambda: client.submit([]),
        lambda: client.abort([]),
        lambda: client.decode_text([1]),
        lambda: client.encode_text("a"),
        lambda: client.encode_chat([]),
    ):
        with pytest.raises(RuntimeError, match="shut down"):
            call()


def test_shutdown_during_a_poll_ends_the_requests_with_abort() -> None:
    entered, go_on = threading.Event(), threading.Event()

    def script(prefix: list[int]) -> int:
        entered.set()
        assert go_on.wait(60)
        return 5

    client = make_client(script=script, max_num_batched_tokens=2)
    client.submit([request("a", [3] * 30)])
    deltas: list[Delta] = []
    poller = threading.Thread(target=lambda: deltas.extend(client.poll()))
    poller.start()
    assert entered.wait(60)
    closer = threading.Thread(target=client.shutdown)
    closer.start()
    while not client._closed:  # set before it waits for the poll
        os.sched_yield()
    go_on.set()
    poller.join(60)
    closer.join(60)
    assert not closer.is_alive()
    assert [(d.request_id, d.finish_reason) for d in deltas] == [("a", "abort")]


def test_after_a_failure_of_the_model_every_call_names_it() -> None:
    def script(prefix: list[int]) -> int:
        raise MemoryError("no more")

    client = make_client(script=script)
    assert client.health() == EngineHealth("running")
    client.submit([request("a", [3])])
    with pytest.raises(MemoryError, match="no more"):
        client.poll()
    with pytest.raises(RuntimeError, match="the engine has failed: MemoryError: no more"):
        client.poll()
    assert client.health() == EngineHealth("failed", "MemoryError: no more")
    client.shutdown()
    with pytest.raises(RuntimeError, match="has been shut down"):
        client.health()


def test_an_interrupted_poll_can_be_continued_or_aborted() -> None:
    interrupt = [True]

    def script(prefix: list[int]) -> int | None:
        if len(prefix) == 5 and interrupt[0]:
            interrupt[0] = False
            raise KeyboardInterrupt
        return None

    client = make_client(script=script)
    client.submit([request("a", [3], max_tokens=8), request("b", [4], max_tokens=8)])
    deltas = [delta for _ in range(4) for delta in client.poll()]
    with pytest.raises(KeyboardInterrupt):
        client.poll()
    client.abort(["b"])
    outcomes = merge(deltas + finish(client))
    assert outcomes["a"].token_ids == run_alone(make_core(), [3], max_tokens=8).token_ids
    assert outcomes["b"].reason == "abort"


def test_without_tokenizer_there_is_no_text() -> None:
    client = make_client()
    assert client.decode_text([3]) is None
    with pytest.raises(RequestError, match="no tokenizer"):
        client.encode_text("a")
    with pytest.raises(RequestError, match="no tokenizer"):
        client.encode_chat([{"role": "user", "content": "a"}])
