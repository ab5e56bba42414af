"""Cost as work grows: prefill over prompt length, decode over context length."""

from statistics import median

from smoe.bench.decode.builtin import prompts
from smoe.bench.decode.own import run_batch
from smoe.bench.result import Figure, Result
from smoe.core.client import EngineClient

LENGTHS = (64, 128, 256, 512, 1024)
NEW_TOKENS = 17


def measure(client: EngineClient, *, dtype: str, repeats: int, result: Result) -> None:
    """Prefill tokens/s at each length (time to first token), and decode step time with that much context."""
    limit = client.info().max_model_len
    lengths = [min(length, limit - NEW_TOKENS) for length in LENGTHS]  # the answer has to fit behind the prompt
    vocab = client.info().vocab_size
    prefill: dict[int, list[float]] = {}
    step_ms: dict[int, list[float]] = {}
    for repeat in range(repeats + 1):
        for length in lengths:
            timing = run_batch(client, prompts(1, length, vocab, seed=repeat), NEW_TOKENS)
            if repeat:
                prefill.setdefault(length, []).append(length / timing.ttft_s)
                step_ms.setdefault(length, []).append(1000 * median(timing.step_s))
    result.samples[f"prefill_{dtype}_tokens_per_s"] = prefill
    result.samples[f"decode_{dtype}_step_ms_at_context"] = step_ms
    for length in lengths:
        result.add(Figure(figure=f"built-in {dtype} prefill {length}", value=median(prefill[length]), unit="tokens/s"))
    base, top = median(step_ms[lengths[0]]), median(step_ms[lengths[-1]])
    for length in lengths:
        name = f"built-in {dtype} decode at context {length}"
        result.add(Figure(figure=name, value=median(step_ms[length]), unit="ms"))
    growth = lengths[-1] / lengths[0]
    result.add(
        Figure(
            figure=f"built-in {dtype} decode step, context {lengths[-1]} over {lengths[0]}",
            value=top / base,
            unit="x",
            goal=f"no worse than linear in the context ({growth:g}x)",
            met=top / base <= growth,
        )
    )
