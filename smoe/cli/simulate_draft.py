"""The draft options of `smoe simulate`: how well a draft does is declared; what it takes follows from its kind."""

from typing import TYPE_CHECKING, Annotated, cast

import typer

from smoe.cli.values import integer, no_effect, number
from smoe.core.errors import ConfigError

if TYPE_CHECKING:
    from smoe.core.draft import PrefetchTiming
    from smoe.sim.drafts import DraftCount, SimDraft

Draft = Annotated[
    str | None,
    typer.Option(
        "--draft", metavar="int4|ngram", help="Verify drafted tokens at once: int4 takes memory and foretells experts."
    ),
]
Tokens = Annotated[str | None, typer.Option("--draft-tokens", metavar="N", help="Drafted a window. Default: 8.")]
Acceptance = Annotated[
    str | None,
    typer.Option("--draft-acceptance", metavar="P", help="Share of drafted tokens that the model keeps, 0 to 1."),
]
Recall = Annotated[
    str | None,
    typer.Option("--draft-recall", metavar="R", help="Share of int4 expert choices that are the model's. Default: 1."),
]
Step = Annotated[
    str | None,
    typer.Option("--draft-step", metavar="TIME", help="With --link: what int4 takes for a token, as 15ms. Default: 0."),
]
Prefetch = Annotated[
    str | None,
    typer.Option("--draft-prefetch", metavar="WHEN", help="As for generate: adaptive, early, late, fixed or none."),
]
GroupSize = Annotated[
    str | None,
    typer.Option("--draft-group-size", metavar="N", help="Weights that share a scale in int4. Default: 64."),
]


def parse(
    draft: str | None,
    *,
    tokens: str | None,
    acceptance: str | None,
    recall: str | None,
    step: str | None,
    prefetch: str | None,
    group_size: str | None,
    timed: bool,
) -> "SimDraft | None":
    """Raises ConfigError, also for what would have no effect."""
    from smoe.core.draft import DEFAULT_GROUP_SIZE, DEFAULT_PREFETCH, LOOKUP_DRAFT, SELF_DRAFT
    from smoe.sim.drafts import SimDraft, int4_share
    from smoe.sim.units import seconds

    given = {"tokens": tokens, "acceptance": acceptance}
    routed = {"recall": recall, "step": step, "prefetch": prefetch, "group_size": group_size}
    if draft is None:
        _refuse(given | routed, "--draft")
        return None
    if draft not in (SELF_DRAFT, LOOKUP_DRAFT):
        raise ConfigError("draft", draft, f"{SELF_DRAFT} or {LOOKUP_DRAFT}")
    if draft == LOOKUP_DRAFT:
        _refuse(routed, f"--draft {SELF_DRAFT}")
    if not timed:
        _refuse({"step": step}, "--link")
    accept = number("draft_acceptance", acceptance)
    if accept is None:
        limit = "with --draft, a share from 0 to 1: a simulation cannot know it, smoe profile depth measures it"
        raise ConfigError("draft_acceptance", None, limit)
    drafted = _tokens(tokens)
    if draft == LOOKUP_DRAFT:
        return SimDraft(tokens=drafted, accept=accept, timing="none")
    share = number("draft_recall", recall)
    return SimDraft(
        tokens=drafted,
        accept=accept,
        recall=1.0 if share is None else share,
        step_s=0.0 if step is None else seconds("draft_step", step),
        bytes_share=int4_share(integer("draft_group_size", group_size) or DEFAULT_GROUP_SIZE),
        timing=cast("PrefetchTiming", prefetch or DEFAULT_PREFETCH),
    )


def cells(count: "DraftCount | None") -> tuple[str, ...]:
    """Of a table: tokens that a window brings, and which of the experts it asked for the draft had chosen."""
    if count is None:
        return ()
    return f"{1 + count.kept / max(1, count.windows):.2f}", f"{count.recall:.1%}"


def _tokens(text: str | None) -> int:
    from smoe.core.draft import MAX_TOKENS

    value = integer("draft_tokens", text)
    if value is None:
        return 8
    if not 1 <= value <= MAX_TOKENS:
        raise ConfigError("draft_tokens", value, f"integer from 1 to {MAX_TOKENS}")
    return value


def _refuse(options: dict[str, str | None], needs: str) -> None:
    for name, value in options.items():
        if value is not None:
            raise no_effect(f"draft_{name}", value, needs)
