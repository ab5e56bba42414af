"""What the layers above the models need to know about a loaded model, without torch."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """`moe_layers[i]` is the decoder layer index of the i-th MoE layer; `expert_bytes` is one expert of one layer.

    `lossy`: the expert policy may change outputs. `expert_tiers`: where experts come from, the farthest first; none
    when all are resident. `emulated_link`: the declared link from the last of them, so that every time belongs to it.
    `draft_tokens`: how many a draft may propose for a sequence in one step, `draft_bytes`: its weights; 0 without a
    draft.
    `fingerprint` identifies the weights (hash of config and tensor index) in route traces and
    placements.
    """

    name: str
    family: str
    fingerprint: str
    dtype: str
    vocab_size: int
    max_model_len: int
    num_layers: int
    moe_layers: tuple[int, ...]
    num_experts: int
    top_k: int
    expert_bytes: int
    dense_bytes: int
    eos_token_ids: tuple[int, ...]
    has_tokenizer: bool
    lossy: bool = False
    expert_tiers: tuple[str, ...] = ()
    emulated_link: str | None = None
    draft_tokens: int = 0
    draft_bytes: int = 0
