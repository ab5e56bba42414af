"""Options that several verbs share."""

from typing import Annotated

import typer

Model = Annotated[str, typer.Option("--model", metavar="DIR|builtin", help="Model folder, or the packaged model.")]
DType = Annotated[str, typer.Option("--dtype", metavar="TYPE", help="auto, float32 or bfloat16.")]
ExpertMemoryOption = Annotated[
    str,
    typer.Option(
        "--expert-memory",
        metavar="SIZE",
        help="Memory for experts: slots a layer (16), a fraction (25%), bytes (2GiB), all or auto.",
    ),
]
ExpertMemoryMax = Annotated[
    str | None,
    typer.Option(
        "--expert-memory-max",
        metavar="SIZE",
        help="How far --expert-memory can be raised while the model runs (in a chat, by /memory SIZE).",
    ),
]
ExpertPolicy = Annotated[
    str | None,
    typer.Option(
        "--expert-policy",
        metavar="POLICY",
        help="What is kept, fetched ahead and done about a miss: evict=lru,prefetch=none,miss=wait; auto (default: "
        "that one, or evict=utility beside --draft int4); or a preset: quality-first, speed-first (lossy).",
    ),
]
ExpertTier = Annotated[
    str,
    typer.Option(
        "--expert-tier",
        metavar="TIER",
        help="Where experts are that are not resident: disk, host (all in host memory), or host:2GiB in front of the "
        "disk.",
    ),
]
ExpertLink = Annotated[
    str | None,
    typer.Option(
        "--expert-link",
        metavar="LINK",
        help="Emulate a slower last link to the slots, from host memory if the tier has some, else from the disk, as "
        "2GB/s+0.1ms; figures say so.",
    ),
]
Draft = Annotated[
    str | None,
    typer.Option(
        "--draft",
        metavar="int4|ngram|DIR",
        help="Speak ahead of the model, which then checks several tokens at once: int4 is its own experts in 4 bits, "
        "ngram what came after the last words before, DIR a smaller model with the same tokenizer.",
    ),
]
DraftTokens = Annotated[
    str | None,
    typer.Option(
        "--draft-tokens",
        metavar="N|auto|online",
        help="How far: N tokens, auto (as smoe profile depth measured, else 8; the default), or online, as it pays.",
    ),
]
DraftGroupSize = Annotated[
    str | None,
    typer.Option("--draft-group-size", metavar="N", help="Weights that share a scale in int4: 32, 64 or 128."),
]
DraftPrefetch = Annotated[
    str | None,
    typer.Option(
        "--draft-prefetch",
        metavar="WHEN",
        help="When what int4 drafts brings experts in: adaptive (the default), early, late, fixed or none.",
    ),
]
DraftLossy = Annotated[
    bool, typer.Option("--draft-lossy", help="Allow an expert policy that changes outputs beside the draft.")
]
DraftResidual = Annotated[
    bool,
    typer.Option(
        "--draft-residual",
        help="Read experts from the disk as what their 4-bit copy does not know of them: the same bits, fewer bytes.",
    ),
]
NoDraftAutoOff = Annotated[bool, typer.Option("--no-draft-auto-off", help="Go on drafting when it does not pay.")]
MaxModelLen = Annotated[
    str | None, typer.Option("--max-model-len", metavar="N", help="Context length; default: the model's own.")
]
MaxTokens = Annotated[
    str | None,
    typer.Option("--max-tokens", metavar="N", help="At most N tokens; default: what is left of the context."),
]
Temperature = Annotated[str | None, typer.Option("--temperature", metavar="T", help="0 (the default) is greedy.")]
TopP = Annotated[str | None, typer.Option("--top-p", metavar="P", help="Sample from the likeliest mass P.")]
TopK = Annotated[str | None, typer.Option("--top-k", metavar="K", help="Sample from the K likeliest tokens.")]
Seed = Annotated[str | None, typer.Option("--seed", metavar="N", help="Makes sampling reproducible.")]
Stop = Annotated[
    list[str] | None, typer.Option("--stop", metavar="TEXT", help="Ends the answer before TEXT; may be repeated.")
]
MaxNumSeqs = Annotated[
    str | None, typer.Option("--max-num-seqs", metavar="N", help="Answers that run at the same time at most.")
]
MaxNumBatchedTokens = Annotated[
    str | None,
    typer.Option("--max-num-batched-tokens", metavar="N", help="Tokens of one step at most, prompts and answers."),
]
InProcess = Annotated[bool, typer.Option("--in-process", help="Run in this process, without Ray.")]
Threads = Annotated[
    str | None, typer.Option("--threads", metavar="N", help="Threads of the model; default: one a core.")
]
ConfigFile = Annotated[
    str | None,
    typer.Argument(metavar="[CONFIG.yaml]", help="A deployment; options given beside it win.", show_default=False),
]
PrintConfig = Annotated[
    bool,
    typer.Option("--print-config", help="Print the resolved deployment as YAML, and run nothing."),
]
TensorParallelSize = Annotated[
    str | None,
    typer.Option(
        "--tensor-parallel-size",
        metavar="N",
        help="Devices that share attention by heads, the vocabulary and the experts.",
    ),
]
DataParallelSize = Annotated[
    str | None,
    typer.Option(
        "--data-parallel-size",
        metavar="N",
        help="Groups of --tensor-parallel-size devices, each with requests of its own; experts lie over all devices.",
    ),
]
DataParallelRouting = Annotated[
    str | None,
    typer.Option(
        "--data-parallel-routing",
        metavar="NAME",
        help="Which group computes a request: even (the default), or tables, the one whose experts its prompt uses.",
    ),
]
Schedule = Annotated[
    str | None,
    typer.Option(
        "--schedule",
        metavar="NAME",
        help="How rows travel between devices: scatter (the default), allreduce, or speculative, which needs "
        "--placement.",
    ),
]
PlacementFolder = Annotated[
    str | None,
    typer.Option("--placement", metavar="DIR", help="Which device has which expert, as smoe regroup writes it."),
]
CapacityFactor = Annotated[
    str | None,
    typer.Option(
        "--capacity-factor",
        metavar="X",
        help="With --schedule speculative: rows that go to one device at most, over an even share; 1 is the default.",
    ),
]
NoDedup = Annotated[
    bool, typer.Option("--no-dedup", help="Send a row once for each of its experts, not once for each device.")
]


def example(line: str) -> str:
    """The end of a verb's help; the \\b keeps the help formatter from wrapping the line."""
    return f"\b\nExample:\n  {line}"
