"""A replica on Ray Serve over a live socket: fake shards whose tokens are known, killed and drained."""

from collections.abc import Iterator

import pytest

from smoe.actors.desk import all_closed
from smoe.actors.serving import Serving
from tests.actors import fakes
from tests.actors.served import LENGTH, PROMPT, check_streams, serving, shards, stream_of, until
from tests.server import statuses
from tests.server.streams import token_ids

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("local_ray")]


@pytest.fixture(scope="module")
def served(local_ray: None) -> Iterator[Serving]:
    served = serving()
    until(served, "serving")
    yield served
    served.close()


def test_every_status_is_openai_s(served: Serving) -> None:
    statuses.check_statuses(statuses.Caller(served.port, "fake"))


def test_streams_at_once_get_their_own_tokens_as_they_come(served: Serving) -> None:
    check_streams(served)


def test_a_killed_shard_changes_no_token_of_a_stream(served: Serving) -> None:
    stream = stream_of(served)
    events = [next(iter(stream))]
    for shard in shards():
        shard.kill()
    events += stream
    assert token_ids(events) == fakes.expected_tokens(PROMPT, LENGTH)


def test_while_it_drains_answers_end_and_new_requests_are_told(served: Serving) -> None:
    """The last: it ends the replicas."""
    call = statuses.Caller(served.port, "fake")
    stream = stream_of(served)
    events = [next(iter(stream))]
    served.end()
    board = served.board(-1, 0.0)
    while not all_closed(board.reports):
        status, headers, body = call.complete()
        if status == 503:
            assert headers["retry-after"] == "1"
            assert body["error"]["code"] in ("draining", "model_closed")
        board = served.board(board.version, 10.0)
    events += stream
    assert token_ids(events) == fakes.expected_tokens(PROMPT, LENGTH)
    assert call.complete()[0] == 503
