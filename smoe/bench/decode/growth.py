"""Cost as work grows: prefill over prompt length, decode over context length."""

from statistics import median

from smoe.bench.decode.builtin import prompts
from smoe.bench.decode.own import run_batch
from smoe.bench.result import Figure, Result
from smoe.core.client import EngineClient

LENGTHS = (64, 128, 256, 512, 1024)


def measure(client: EngineClient, *, dtype: str, repeats: int, result: Result) -> None:
    """Prefill tokens/s at each length (time to first token), and decode step time with that much context."""
    limit = client.info().max_model_len
    vocab = client.info().vocab_size
    prefill: dict[int, list[float]] = {}
    step_ms: dict[int, list[float]] = {}
    for repeat in range(repeats + 1):
        for length in LENGTHS:
            context = min(length, limit - 17)
            timing = run_batch(client, prompts(1, context, vocab, seed=repeat), 17)
            if repeat:
                prefill.setdefault(length, []).append(context / timing.ttft_s)
                step_ms.setdefault(length, []).append(1000 * median(timing.step_s))
    result.samples[f"prefill_{dtype}_tokens_per_s"] = prefill
    result.samples[f"decode_{dtype}_step_ms_at_context"] = step_ms
    for length in LENGTHS:
        result.add(Figure(figure=f"built-in {dtype} prefill {length}", value=median(prefill[length]), unit="tokens/s"))
    base, top = median(step_ms[LENGTHS[0]]), median(step_ms[LENGTHS[-1]])
    for length in LENGTHS:
        name = f"built-in {dtype} decode at context {length}"
        result.add(Figure(figure=name, value=median(step_ms[length]), unit="ms"))
    growth = LENGTHS[-1] / LENGTHS[0]
    result.add(
        Figure(
            figure=f"built-in {dtype} decode step, context {LENGTHS[-1]} over {LENGTHS[0]}",
            value=top / base,
            unit="x",
            goal=f"no worse than linear in the context ({growth:g}x)",
            met=top / base <= growth,
        )
    )
