"""One step's rows: the new tokens of several sequences, concatenated."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from smoe.kernels import GatedDelta, Rows
from smoe.models.kv import LayerCache

RouteSink = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], None]
"""Called by every MoE layer with (decoder layer, ids_TK i32, weights_TK f32, logits_TE f32)."""

DeltaSink = Callable[[GatedDelta, torch.Tensor, LayerCache], None]
"""Called by every recurrent layer with (net, its input x_TX, the cache whose states it carries on)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """T rows. `rows` says where each row's KV lives; `state_slots[s]` is the recurrent state of span s.

    `logit_rows_M` are the rows whose logits are wanted. `prompt_lens[s]` is how many tokens the prompt of span s has
    in all, 0 where that is past: positions that stretch with the length (longrope) need it from the first chunk on.
    """

    token_ids_T: torch.Tensor
    rows: Rows
    state_slots: tuple[int, ...]
    logit_rows_M: torch.Tensor
    prompt_lens: tuple[int, ...]
    route_sink: RouteSink | None = None
    delta_sink: DeltaSink | None = None

    def reach_T(self) -> torch.Tensor:
        """[T] how long each row's sequence is known to get: its prompt, or up to the row itself."""
        counts = torch.tensor([count for _, count, _, _ in self.rows.spans])
        prompt_lens_T = torch.tensor(self.prompt_lens).repeat_interleave(counts).to(self.rows.pos_T.device)
        return torch.maximum(self.rows.pos_T + 1, prompt_lens_T)

    @classmethod
    def build(
        cls,
        spans: "list[tuple[list[int] | tuple[int, ...], int, int, int]]",
        *,
        logit_rows: list[int] | None = None,
        prompt_lens: list[int] | None = None,
        device: torch.device | str = "cpu",
        route_sink: RouteSink | None = None,
        delta_sink: DeltaSink | None = None,
    ) -> "Batch":
        """From spans (token_ids, kv_start, past, state_slot); `logit_rows=None` wants each span's last row;
        `prompt_lens=None` takes a span with past = 0 for a whole prompt."""
        ids: list[int] = []
        starts: list[int] = []
        positions: list[int] = []
        layout: list[tuple[int, int, int, int]] = []
        last: list[int] = []
        for token_ids, kv_start, past, _ in spans:
            count = len(token_ids)
            layout.append((len(ids), count, kv_start, past))
            ids.extend(token_ids)
            starts.extend([kv_start] * count)
            positions.extend(range(past, past + count))
            last.append(len(ids) - 1)
        # Through numpy: a third of the time of torch.tensor, twice a step.
        packed = torch.from_numpy(np.array([ids, starts, positions], dtype=np.int64)).to(device)
        wanted = np.array(last if logit_rows is None else logit_rows, dtype=np.int64)
        return cls(
            token_ids_T=packed[0],
            rows=Rows(packed[1], packed[2], tuple(layout)),
            state_slots=tuple(span[3] for span in spans),
            logit_rows_M=torch.from_numpy(wanted).to(device),
            prompt_lens=tuple(
                prompt_lens if prompt_lens is not None else [0 if past else count for _, count, _, past in layout]
            ),
            route_sink=route_sink,
            delta_sink=delta_sink,
        )


@dataclass(slots=True)
class StepContext:
    """What layers share within one forward: the batch, and cos/sin per RopeSpec (made on first use)."""

    batch: Batch
    rope: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
