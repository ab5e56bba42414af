import dataclasses
import multiprocessing
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from smoe.actors.channel import Channel, Door, connect


def pair() -> tuple[Channel, Channel]:
    door = Door("127.0.0.1")
    with ThreadPoolExecutor(1) as pool:
        inside = pool.submit(door.accept)
        return connect(door.address), inside.result()


def send_forever(channel: Channel) -> None:
    while True:
        channel.send(b"x" * 2**16)


# 16 KiB is where multiprocessing writes header and payload apart; 1 MiB does not fit a socket buffer.
@pytest.mark.parametrize("size", [0, 1, 16_384, 16_385, 2**20])
def test_messages_arrive_whole_and_in_order(size: int) -> None:
    near, far = pair()
    sender = threading.Thread(target=lambda: [near.send((i, b"x" * size)) for i in range(3)])
    sender.start()
    assert [far.receive() for _ in range(3)] == [(i, b"x" * size) for i in range(3)]
    sender.join()


def test_the_other_end_learns_of_a_close_while_it_waits() -> None:
    near, far = pair()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(far.receive)
        near.close()
        with pytest.raises((EOFError, OSError)):
            waiting.result()
    with pytest.raises(OSError):
        send_forever(far)


def test_close_wakes_a_reader_of_the_same_end() -> None:
    near, _far = pair()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(near.receive)
        near.close()
        with pytest.raises((EOFError, OSError)):
            waiting.result()


def test_close_twice_is_once() -> None:
    near, far = pair()
    near.close()
    near.close()
    far.close()


def test_who_does_not_know_the_key_stays_outside() -> None:
    door = Door("127.0.0.1")
    with ThreadPoolExecutor(1) as pool:
        inside = pool.submit(door.accept)
        with pytest.raises(multiprocessing.AuthenticationError):
            connect(dataclasses.replace(door.address, key=b"wrong"))
        with pytest.raises(multiprocessing.AuthenticationError):
            inside.result()
