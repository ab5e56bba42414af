"""Links to shards that stop answering, over real sockets and with no Ray."""

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from smoe.actors.channel import Address
from smoe.actors.links import LinkLimits, ShardsLost, SocketLink
from smoe.actors.outcome import unwrap
from smoe.actors.shard import Shard
from smoe.core.config import EngineConfig
from smoe.core.step import StepPlan
from tests.actors import fakes

LinkTo = Callable[..., SocketLink]
NOTHING = StepPlan(spans=())


@pytest.fixture
def link_to() -> Iterator[LinkTo]:
    links: list[SocketLink] = []
    hanging: list[fakes.HangingExecutor] = []

    def make(*executors: fakes.FakeExecutor, step_s: float = 600.0, lag_s: float = 60.0) -> SocketLink:
        hanging.extend(e for e in executors if isinstance(e, fakes.HangingExecutor))
        shards = [Shard(rank, EngineConfig(), lambda *_, e=e: e) for rank, e in enumerate(executors)]
        for shard in shards:
            unwrap(shard.load())
        links.append(SocketLink([unwrap(s.open("127.0.0.1")) for s in shards], LinkLimits(step_s, lag_s)))
        return links[-1]

    yield make
    for executor in hanging:
        executor.release.set()
    for link in links:
        link.close()


def test_answers_come_by_rank(link_to: LinkTo) -> None:
    link = link_to(fakes.FakeExecutor(), fakes.FakeExecutor(), fakes.FakeExecutor())
    assert link.call("resize_experts", "7") == [7, 7, 7]


def test_a_step_that_takes_too_long_is_a_lost_shard(link_to: LinkTo) -> None:
    link = link_to(fakes.HangingExecutor(at=2), step_s=0.2)
    link.call("execute", NOTHING)
    with pytest.raises(ShardsLost, match=r"^shard 0 hangs: no answer to a step within 0.2 s$"):
        link.call("execute", NOTHING)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_far_behind_the_others_is_lost(link_to: LinkTo, rank: int) -> None:
    executors = [fakes.FakeExecutor(), fakes.FakeExecutor(), fakes.FakeExecutor()]
    executors[rank] = fakes.HangingExecutor(at=1)
    link = link_to(*executors, lag_s=0.2)
    with pytest.raises(ShardsLost, match=rf"^shard {rank} hangs: no answer after the first of the others within 0.2 s"):
        link.call("execute", NOTHING)


def test_a_shard_that_hangs_before_it_is_connected_is_found_at_once() -> None:
    """Its kernel accepts the connection, but it never proves who it is."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = Address("127.0.0.1", server.getsockname()[1], b"key")
        with pytest.raises(ShardsLost, match=r"^shard 0 does not answer"):
            SocketLink([address], LinkLimits(attach_s=0.2))


def test_closing_ends_a_call_on_another_thread(link_to: LinkTo) -> None:
    executor = fakes.HangingExecutor(at=1)
    link = link_to(executor)
    failures: list[BaseException] = []

    def call() -> None:
        try:
            link.call("execute", NOTHING)
        except ShardsLost as error:
            failures.append(error)

    caller = threading.Thread(target=call, daemon=True)
    caller.start()
    link.close()
    caller.join(30)
    assert not caller.is_alive()
    assert len(failures) == 1


def test_a_message_that_stops_half_way_is_an_error() -> None:
    import socket
    import struct
    from concurrent.futures import ThreadPoolExecutor
    from multiprocessing.connection import Connection

    from smoe.actors.channel import Channel

    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        far = pool.submit(socket.create_connection, server.getsockname()).result()
        near, _ = server.accept()
        far.sendall(struct.pack("!i", 100) + b"half")
        channel = Channel(Connection(near.detach()), stall_s=0.2)
        with pytest.raises(OSError):
            channel.receive()
        channel.close()
        far.close()
