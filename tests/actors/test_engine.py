"""Engine, link and shard over real sockets, with no Ray: they are plain classes."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from smoe.actors.engine import Engine
from smoe.actors.links import ShardsLost, SocketLink
from smoe.actors.outcome import Failed, unwrap
from smoe.actors.shard import Shard, ShardReady
from smoe.core.config import EngineConfig
from smoe.core.errors import CheckpointError, CollectiveError, RequestError, StartupError
from smoe.core.placement import Placement
from smoe.core.request import Delta, Request
from smoe.core.sampling import SamplingParams
from smoe.core.step import ExpertsMoved
from tests.actors import fakes
from tests.collectives.placements import random_placement

HOST = "127.0.0.1"


def request(name: str, prompt: list[int], count: int) -> Request:
    return Request(request_id=name, prompt_token_ids=tuple(prompt), params=SamplingParams(max_tokens=count))


class Rig:
    """One engine on a folder without a tokenizer, and the shards it is given."""

    def __init__(self, folder: Path) -> None:
        self.config = EngineConfig(model=str(folder))
        self.engine = Engine(self.config)

    def attach(self, *executors: fakes.FakeExecutor) -> Failed | None:
        shards = [Shard(rank, self.config, lambda *_, e=e: e) for rank, e in enumerate(executors)]
        ready, *_ = [unwrap(shard.load()) for shard in shards]
        return self.engine.attach(ready, partial(SocketLink, [unwrap(shard.open(HOST)) for shard in shards]))

    def collect(self, names: list[str]) -> dict[str, list[Delta]]:
        got: dict[str, list[Delta]] = {name: [] for name in names}
        while not all(got[name] and got[name][-1].finish_reason for name in names):
            for delta in self.engine.poll(5.0):
                got[delta.request_id].append(delta)
        return got


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    (tmp_path / "config.json").write_text("{}")
    rig = Rig(tmp_path)
    yield rig
    rig.engine.stop()


def tokens(deltas: list[Delta]) -> list[int]:
    return [token for delta in deltas for token in delta.token_ids]


def test_requests_together_get_the_tokens_they_get_alone(rig: Rig) -> None:
    rig.attach(fakes.FakeExecutor())
    prompts = {f"r{i}": list(range(1, 2 + 7 * i)) for i in range(4)}
    assert rig.engine.submit([request(name, prompt, 20) for name, prompt in prompts.items()]) is None
    for name, deltas in rig.collect(list(prompts)).items():
        assert tokens(deltas) == fakes.expected_tokens(prompts[name], 20)
        assert deltas[-1].finish_reason == "length"


def test_every_rank_gets_every_plan_and_rank_0_answers(rig: Rig) -> None:
    executors = [fakes.FakeExecutor() for _ in range(3)]
    rig.attach(*executors)
    rig.engine.submit([request("r", [1, 2], 5)])
    assert tokens(rig.collect(["r"])["r"]) == fakes.expected_tokens([1, 2], 5)
    assert [e.stats().experts.hits for e in executors] == [5, 5, 5]


def test_lost_devices_are_replaced_and_requests_keep_their_tokens(rig: Rig) -> None:
    rig.attach(fakes.FakeExecutor(die_after=10))
    names = ["a", "b"]
    rig.engine.submit([request("a", [1, 2, 3], 20), request("b", [9], 30)])
    assert "the device fell off the bus" in rig.engine.until_lost()
    stats = unwrap(rig.engine.stats())
    assert stats.generated_tokens == 18
    second = fakes.FakeExecutor()
    rig.attach(second)
    got = rig.collect(names)
    assert tokens(got["a"]) == fakes.expected_tokens([1, 2, 3], 20)
    assert tokens(got["b"]) == fakes.expected_tokens([9], 30)
    # Counts go on where the lost executor's ended: 9 steps before, one with both prompts and 21 after.
    after = unwrap(rig.engine.stats())
    assert after.experts.hits == stats.experts.hits + second.stats().experts.hits > 20
    assert after.routing.choices == after.routing.local == after.experts.hits
    assert (after.experts.budget_bytes, after.experts.peak_bytes) == (64, 32)
    assert 0 < after.rss_bytes <= after.peak_rss_bytes


def test_an_impossible_request_queues_none_of_its_batch(rig: Rig) -> None:
    rig.attach(fakes.FakeExecutor())
    failed = rig.engine.submit([request("good", [1], 1), request("bad", [fakes.VOCAB], 1)])
    with pytest.raises(RequestError, match="prompt_token_ids: 100 "):
        unwrap(failed)
    assert unwrap(rig.engine.stats()).waiting == 0


def test_abort_ends_one_request_and_leaves_the_other(rig: Rig) -> None:
    rig.attach(fakes.FakeExecutor())
    rig.engine.submit([request("long", [1], 500), request("other", [2], 50)])
    rig.engine.abort(["long", "unknown"])
    got = rig.collect(["long", "other"])
    assert got["long"][-1].finish_reason == "abort"
    assert tokens(got["other"]) == fakes.expected_tokens([2], 50)


def test_poll_returns_empty_after_its_timeout(rig: Rig) -> None:
    rig.attach(fakes.FakeExecutor())
    assert rig.engine.poll(0.0) == []


def test_stop_shuts_the_executors_down(rig: Rig) -> None:
    executors = [fakes.FakeExecutor(), fakes.FakeExecutor()]
    rig.attach(*executors)
    assert rig.engine.stop() is None
    assert all(executor.closed for executor in executors)


def test_a_tokenizer_that_does_not_load_fails_the_start(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokenizer.json").write_text("not json")
    rig = Rig(tmp_path)
    with pytest.raises(CheckpointError):
        unwrap(rig.attach(fakes.FakeExecutor()))
    rig.engine.stop()


def test_load_errors_come_back_as_data() -> None:
    config = EngineConfig()
    with pytest.raises(CheckpointError, match="tensor `x` is missing"):
        unwrap(Shard(0, config, fakes.build_broken).load())
    with pytest.raises(StartupError, match=r"^KeyError: 'layers.0'$"):
        unwrap(Shard(0, config, fakes.build_buggy).load())


def test_a_link_to_nobody_says_which_shard() -> None:
    shard = Shard(0, EngineConfig(), fakes.build)
    assert isinstance(shard.load(), ShardReady)
    address = unwrap(shard.open(HOST))
    SocketLink([address]).close()
    with pytest.raises(ShardsLost, match="shard 0 does not answer"):
        SocketLink([address])


def test_soon_after_an_answer_only_the_end_of_a_request_is_news(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smoe.actors.engine._POLL_INTERVAL_S", 600.0)
    rig.attach(fakes.FakeExecutor())
    rig.engine.submit([request("a", [1], 40)])
    first = rig.engine.poll(5.0)
    rest = [] if first[-1].finish_reason else rig.engine.poll(5.0)
    deltas = [*first, *rest]
    assert deltas[-1].finish_reason == "length"
    assert sum(len(delta.token_ids) for delta in deltas) == 40


def test_experts_are_resized_between_steps_and_a_refusal_loses_no_shard(rig: Rig) -> None:
    rig.attach(fakes.FakeExecutor())
    rig.engine.submit([request("a", [1, 2], 6)])
    assert rig.engine.resize_experts("24") == 24
    refusal = rig.engine.resize_experts("many")
    assert isinstance(refusal, Failed)
    assert str(refusal.error) == "expert_memory: 'many' (a number)"
    assert len(tokens(rig.collect(["a"])["a"])) == 6


def some_placement(fingerprint: str = fakes.INFO.fingerprint) -> Placement:
    return random_placement(0, experts=4, layers=(0,), devices=2, fingerprint=fingerprint)


def test_a_placement_is_applied_between_steps_and_a_refusal_loses_no_shard(rig: Rig) -> None:
    executors = [fakes.FakeExecutor(), fakes.FakeExecutor()]
    rig.attach(*executors)
    rig.engine.submit([request("a", [1, 2], 40)])
    assert rig.engine.apply_placement(some_placement(), "p") == ExpertsMoved(experts=2, nbytes=16)  # of both ranks
    refusal = rig.engine.apply_placement(some_placement("other"), "q")
    assert isinstance(refusal, Failed)
    assert str(refusal.error) == "q: fingerprint: 'other'"
    assert tokens(rig.collect(["a"])["a"]) == fakes.expected_tokens([1, 2], 40)
    assert all(executor.placement is not None for executor in executors)


def test_shards_that_replace_lost_ones_get_the_placement_that_was_applied_last(rig: Rig) -> None:
    rig.attach(fakes.FakeExecutor(die_after=10))
    applied = some_placement()
    unwrap(rig.engine.apply_placement(applied, "p"))
    rig.engine.submit([request("a", [1, 2, 3], 20)])
    rig.engine.until_lost()
    later = fakes.FakeExecutor()
    rig.attach(later)
    assert tokens(rig.collect(["a"])["a"]) == fakes.expected_tokens([1, 2, 3], 20)
    assert later.placement is not None
    assert (later.placement.slot2expert == applied.slot2expert).all()


def test_a_shard_that_breaks_while_experts_move_is_lost_at_once(rig: Rig) -> None:
    """It may have switched where others have not: no step may run."""

    class Breaking(fakes.FakeExecutor):
        def apply_placement(self, placement: Placement, name: str) -> ExpertsMoved:
            raise CollectiveError("experts over ranks [0, 1]: gone")

    rig.attach(fakes.FakeExecutor(), Breaking())
    failed = rig.engine.apply_placement(some_placement(), "p")
    assert isinstance(failed, Failed)
    assert "shard 1: experts over ranks [0, 1]: gone" in str(failed.error)
    assert "gone" in rig.engine.until_lost()
    rig.attach(fakes.FakeExecutor(), later := fakes.FakeExecutor())
    rig.engine.submit([request("a", [1], 5)])
    assert tokens(rig.collect(["a"])["a"]) == fakes.expected_tokens([1], 5)
    assert later.placement is None
