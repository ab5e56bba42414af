"""One data-parallel group's memory: its KV rows, its recurrent states, and the sequences that wait for them."""

from collections import deque
from collections.abc import Iterable

from smoe.sched.kv_ranges import KVRanges
from smoe.sched.sequence import Sequence


class Arena:
    """`waiting` in the order in which they came: the first that does not fit holds up those behind it."""

    def __init__(self, kv_rows: int, num_states: int) -> None:
        self.kv = KVRanges(kv_rows)
        self.waiting: deque[Sequence] = deque()
        self.load_rows = 0
        """Rows of all sequences that are the group's, whether they have them yet or not."""
        self._num_states = num_states
        self._free_states = list(range(num_states - 1, -1, -1))

    def add(self, sequence: Sequence, *, first: bool = False) -> None:
        """Queues it last, or before all others."""
        (self.waiting.appendleft if first else self.waiting.append)(sequence)
        self.load_rows += sequence.num_rows

    def drop(self, sequence: Sequence) -> None:
        """Takes it out of the queue."""
        self.waiting.remove(sequence)
        self.load_rows -= sequence.num_rows

    def try_admit(self, sequence: Sequence) -> bool:
        """Takes the first that waits from the queue and gives it rows and a state, if there are any."""
        assert sequence is self.waiting[0], f"{sequence.request_id} is not next"
        if not self._free_states:
            return False
        start = self.kv.try_reserve(sequence.request_id, sequence.num_rows)
        if start is None:
            return False
        sequence.kv_start, sequence.state_slot, sequence.past = start, self._free_states.pop(), 0
        self.waiting.popleft()
        return True

    def release(self, sequence: Sequence) -> None:
        self.kv.free(sequence.request_id)
        self.load_rows -= sequence.num_rows
        self._free_states.append(sequence.state_slot)
        sequence.kv_start = sequence.state_slot = -1

    def check_integrity(self, running: Iterable[Sequence]) -> None:
        """Raises RuntimeError unless rows and state slots are each owned once and by `running`, the group's, only."""
        running = list(running)
        self.kv.check_integrity()
        rows = sum(sequence.num_rows for sequence in running)
        if rows != self.kv.used_rows:
            raise RuntimeError(f"KV rows: {self.kv.used_rows} reserved, running sequences own {rows}")
        load = rows + sum(sequence.num_rows for sequence in self.waiting)
        if load != self.load_rows:
            raise RuntimeError(f"KV rows: a load of {self.load_rows} is counted, sequences have {load}")
        states = sorted([*self._free_states, *(sequence.state_slot for sequence in running)])
        if states != list(range(self._num_states)):
            raise RuntimeError(f"state slots: free and running together are {states}, not 0..{self._num_states - 1}")
