"""Request records with round times."""

from smoe.metrics.serving import RequestRecord


def record(
    *chunk_s: float, sent_s: float = 10.0, due_s: float = 10.0, tokens: int | None = None, error: str | None = None
) -> RequestRecord:
    """One token a chunk, unless `tokens` says how many there were in all."""
    return RequestRecord(
        request_id="r",
        scheduled_s=due_s,
        sent_s=sent_s,
        prompt_tokens=7,
        output_tokens=len(chunk_s) if tokens is None else tokens,
        chunk_s=chunk_s,
        chunk_tokens=(1,) * len(chunk_s),
        error=error,
        status=200,
    )
