"""A decoder without arithmetic: its logits are a function of the whole prefix that it finds in its KV rows.

So a request that reads rows of another, or misses one of its own, gets other tokens.
"""

import hashlib
from collections.abc import Callable
from dataclasses import replace

import torch

from smoe.core.errors import StoreError
from smoe.core.model_info import ModelInfo
from smoe.core.stats import ExpertStats
from smoe.engine.core import EngineCore
from smoe.engine.draft.speculation import Speculation
from smoe.engine.local import LocalClient
from smoe.engine.recorder import RouteRecorder
from smoe.engine.runner import Runner
from smoe.engine.tokenizer import Tokenizer
from smoe.models.bank import Lookahead
from smoe.models.batch import Batch
from smoe.models.kv import KVCache
from smoe.models.spec import DecoderSpec

VOCAB, EOS, CONTEXT = 128, 1, 96
NAN_TOKEN, LOST_TOKEN = 126, 127  # a prefix with the first has NaN logits; the second needs an expert that is lost
SPEC = DecoderSpec(
    family="fake", hidden=1, vocab=VOCAB, layers=(), norm="rms", norm_eps=1e-6, tied_head=True, max_positions=CONTEXT
)

Script = Callable[[list[int]], int | None]


class FakeDecoder:
    """`script` may choose the token after a prefix; otherwise logits are pseudo-random in the prefix."""

    def __init__(self, rows: int, script: Script | None = None, vocab: int = VOCAB) -> None:
        self.spec = SPEC
        self.rows_R = torch.full((rows,), -1, dtype=torch.int64)
        self.script = script
        self.vocab = vocab
        self.num_forwards = 0
        self.batch_sizes: list[int] = []

    def forward(self, batch: Batch, kv: KVCache) -> torch.Tensor:
        self.num_forwards += 1
        self.batch_sizes.append(len(batch.token_ids_T))
        prefixes = {}
        for first, count, start, past in batch.rows.spans:
            tokens_N = batch.token_ids_T[first : first + count]
            assert batch.rows.pos_T[first : first + count].tolist() == list(range(past, past + count))
            if LOST_TOKEN in tokens_N.tolist():
                raise StoreError(f"expert of token {LOST_TOKEN} is lost")
            self.rows_R[start + past : start + past + count] = tokens_N
            rows = self.rows_R[start : start + past + count].tolist()
            for place in range(count):
                prefixes[first + place] = rows[: past + place + 1]
        if batch.route_sink is not None:
            for layer in INFO.moe_layers:
                ids_TK = torch.stack([batch.token_ids_T % 4, batch.token_ids_T % 4 + 4], -1).int()
                weights_TK = torch.tensor([[0.25, 0.75]]).expand(len(ids_TK), 2)
                batch.route_sink(layer, ids_TK, weights_TK, torch.zeros(len(ids_TK), 8))
        wanted = batch.logit_rows_M.tolist()
        return torch.stack([self._logits(prefixes[row]) for row in wanted]) if wanted else torch.empty(0, self.vocab)

    def _logits(self, prefix: list[int]) -> torch.Tensor:
        assert -1 not in prefix, "a row was read that its owner never wrote"
        if NAN_TOKEN in prefix:
            return torch.full((self.vocab,), float("nan"))
        chosen = None if self.script is None else self.script(prefix)
        if chosen is not None:
            return 100.0 * torch.nn.functional.one_hot(torch.tensor(chosen), self.vocab).float()
        seed = int.from_bytes(hashlib.sha256(repr(prefix).encode()).digest()[:6], "little")
        logits = torch.randn(self.vocab, generator=torch.Generator().manual_seed(seed))
        logits[[EOS, NAN_TOKEN, LOST_TOKEN]] = -20.0
        return logits


class FakeBank:
    def __init__(self) -> None:
        self.closed = False

    needs_logits = False

    def use_lookahead(self, lookahead: Lookahead) -> None:
        raise AssertionError

    def begin_forward(self, token_ids_T: torch.Tensor) -> None:
        raise AssertionError

    def substitutions(self) -> None:
        return None

    def apply(self, *_: object) -> torch.Tensor:
        raise AssertionError

    def stats(self) -> ExpertStats:
        return ExpertStats(hits=3)

    def check_integrity(self) -> None:
        assert not self.closed

    def close(self) -> None:
        self.closed = True


INFO = ModelInfo(
    name="fake",
    family="fake",
    fingerprint="f" * 16,
    dtype="float32",
    vocab_size=VOCAB,
    max_model_len=CONTEXT,
    num_layers=4,
    moe_layers=(1, 3),
    num_experts=8,
    top_k=2,
    expert_bytes=1,
    dense_bytes=1,
    eos_token_ids=(EOS,),
    has_tokenizer=False,
)


def make_runner(
    rows: int = 256,
    script: Script | None = None,
    recorder: RouteRecorder | None = None,
    vocab: int = VOCAB,
    speculation: Speculation | None = None,
    draft_tokens: int = 0,
) -> Runner:
    kv = KVCache(SPEC, num_rows=rows, num_states=8, dtype=torch.float32)
    decoder, info = FakeDecoder(rows, script, vocab), replace(INFO, draft_tokens=draft_tokens)
    return Runner(decoder, kv, FakeBank(), info, recorder=recorder, speculation=speculation)  # type: ignore[arg-type]


def make_core(
    rows: int = 256,
    script: Script | None = None,
    *,
    tokenizer: Tokenizer | None = None,
    max_num_seqs: int = 8,
    max_num_batched_tokens: int = 64,
    seed: int = 0,
) -> EngineCore:
    return EngineCore(
        make_runner(rows, script),
        tokenizer,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        seed=seed,
    )


def make_client(**options: object) -> LocalClient:
    return LocalClient(make_core(**options))  # type: ignore[arg-type]
