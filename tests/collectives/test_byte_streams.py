"""Tensors between all ranks in rounds of bounded size."""

import pytest
import torch

from smoe.collectives.byte_streams import ByteStream, exchange_streams
from smoe.collectives.group import SoloGroup
from tests.collectives.thread_group import ThreadGroup, run_ranks

DTYPES = (torch.float32, torch.bfloat16, torch.uint8)


def stream(source: int, target: int) -> list[torch.Tensor]:
    """What one rank has for another one: of unlike sizes and dtypes, often nothing, now and then an empty tensor."""
    generator = torch.Generator().manual_seed(7 * source + target)
    counts = torch.randint(0, 60, ((source + 2 * target + 1) % 4,), generator=generator).tolist()
    return [
        torch.randint(0, 100, (count, 3), generator=generator).to(DTYPES[(source + i) % 3])
        for i, count in enumerate(counts)
    ]


def nbytes(tensors: list[torch.Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def test_takes_the_bytes_one_behind_the_other() -> None:
    tensors = [torch.arange(3, dtype=torch.int32), torch.empty(0), torch.arange(5, dtype=torch.uint8)]
    whole = torch.cat([tensor.view(torch.uint8) for tensor in tensors])
    taken, left = [], ByteStream(tensors)
    for count in (1, 0, 12, 3, 100, 7):
        taken.append(torch.cat([torch.empty(0, dtype=torch.uint8), *left.take(count)]))
    assert [len(part) for part in taken] == [1, 0, 12, 3, 1, 0]
    assert torch.equal(torch.cat(taken), whole)


@pytest.mark.parametrize("max_bytes", [1, 5, 64, 1 << 20])  # a byte at a time, tensors cut anywhere, all at once
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_every_tensor_arrives_within_the_bound(size: int, max_bytes: int) -> None:
    longest = max(nbytes(stream(source, target)) for source in range(size) for target in range(size))
    seen: list[int] = []

    class Watched(ThreadGroup):
        def all_to_all(self, rows, send, receive, purpose):
            seen.extend((sum(send), sum(receive)))
            return super().all_to_all(rows, send, receive, purpose)

    def body(group: ThreadGroup) -> list[list[torch.Tensor]]:
        watched = Watched(group._world, group.rank, group.ledger)
        outgoing = [stream(group.rank, target) for target in range(size)]
        incoming = [[torch.empty_like(tensor) for tensor in stream(source, group.rank)] for source in range(size)]
        exchange_streams(watched, outgoing, incoming, "experts", longest_bytes=longest, max_bytes=max_bytes)
        wire = sum(nbytes(outgoing[target]) for target in range(size) if target != group.rank)
        assert group.ledger.traffic("experts").wire == wire
        return incoming

    for target, incoming in enumerate(run_ranks(size, body)):
        for source, tensors in enumerate(incoming):
            for ours, theirs in zip(tensors, stream(source, target), strict=True):
                assert torch.equal(ours, theirs), (source, target)
    assert max(seen) <= max(max_bytes, size)


def test_nothing_to_send_takes_no_round() -> None:
    group = SoloGroup()
    exchange_streams(group, [[]], [[]], "experts", longest_bytes=0)
    assert group.ledger.traffic("experts").calls == 0
