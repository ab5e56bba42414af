"""`smoe profile`: record the routes that texts or prompts take through a model."""

import hashlib
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from smoe.cli import options
from smoe.cli.generate import dtype_of
from smoe.cli.progress import Progress
from smoe.cli.values import integer, no_effect, number
from smoe.core.config import DEFAULT_POLICY, EngineConfig
from smoe.core.errors import ConfigError
from smoe.core.expert_tier import DEFAULT_TIER

if TYPE_CHECKING:
    from smoe.cli.preflight import Preflight
    from smoe.core.sampling import SamplingParams
    from smoe.engine.profile_folder import ProfileFolder
    from smoe.engine.profile_sequences import Piece

NAME = "profile"
EXAMPLE = options.example(
    "smoe profile routes --data books.txt.gz --data chats.jsonl --sample 0.1 --out routes.safetensors"
)

_PART_TOKENS = 8_192


def command(
    data: Annotated[
        list[Path],
        typer.Option(
            "--data",
            metavar="FILE",
            help="Texts (.txt: documents at blank lines, code at `# file:` lines) or prompts (.jsonl: prompt, "
            "question, text or turns), also .gz; may be repeated. The name up to its first dot labels the sequences.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The route trace; compressed if it ends in .gz.")],
    model: options.Model = "builtin",
    max_tokens: Annotated[
        str | None,
        typer.Option("--max-tokens", metavar="N", help="Generate N tokens after each prompt; default: only read it."),
    ] = None,
    sample: Annotated[
        str | None, typer.Option("--sample", metavar="X", help="This share of the documents; default: all.")
    ] = None,
    seed: Annotated[str | None, typer.Option("--seed", metavar="N", help="Draws the sample; default 0.")] = None,
    max_sequence: Annotated[
        str | None,
        typer.Option("--max-sequence", metavar="N", help="Of each document the first N tokens; default: the context."),
    ] = None,
    pack: Annotated[
        bool, typer.Option("--pack", help="Cut the documents, one after another, into full sequences instead.")
    ] = False,
    record_logits: Annotated[
        bool, typer.Option("--record-logits", help="Router logits go into the route trace too.")
    ] = False,
    dtype: options.DType = "auto",
    expert_memory: options.ExpertMemoryOption = "all",
    expert_policy: options.ExpertPolicy = None,
    expert_tier: options.ExpertTier = DEFAULT_TIER,
    threads: options.Threads = None,
    in_process: options.InProcess = False,
) -> int:
    """Record which experts the tokens of texts or prompts go to.

    A run that was stopped goes on when it is started again with the same arguments.
    """
    from smoe.cli import preflight
    from smoe.core.sampling import SamplingParams
    from smoe.engine.profile_data import read_documents
    from smoe.engine.profile_folder import ProfileFolder
    from smoe.engine.profile_sequences import choose, one_by_one, packed

    share, drawn_by = _share(sample), _seed(seed, sample)
    generated, longest = (_positive(n, v) for n, v in (("max_tokens", max_tokens), ("max_sequence", max_sequence)))
    if pack and generated is not None:
        raise ConfigError("pack", pack, "not with --max-tokens: answers follow whole prompts")
    folder_path = out.absolute().with_name(out.name + ".parts")
    config = EngineConfig(
        model=model,
        dtype=dtype_of(dtype),
        expert_memory=expert_memory,
        expert_policy=DEFAULT_POLICY if expert_policy is None else expert_policy,
        expert_tier=expert_tier,
        threads=integer("threads", threads),
        record_routes=str(folder_path),
        record_logits=record_logits,
        record_part_tokens=_PART_TOKENS,
    )
    documents = read_documents(data)
    checked = preflight.check(config)
    if checked.info.lossy:
        raise ConfigError("expert_policy", expert_policy, "a lossless one: routes of another are not the model's")
    encode = _encoder(checked, model)
    room = checked.info.max_model_len - (generated or 1)
    if room < 1 or (longest is not None and longest > room):
        field, value = ("max_tokens", generated) if longest is None else ("max_sequence", longest)
        raise ConfigError(field, value, f"the context has {checked.info.max_model_len} tokens")
    arguments = {
        "data": [_digest(path) for path in data],
        "dtype": checked.info.dtype,
        "max_sequence": longest or room,
        "max_tokens": generated,
        "model": checked.info.fingerprint,
        "pack": pack,
        "record_logits": record_logits,
        "sample": share,
        "seed": drawn_by,
    }
    folder = ProfileFolder(out.absolute(), arguments)
    cut = packed if pack else one_by_one
    pieces = partial(cut, documents, choose(documents, share, drawn_by), encode, longest or room)
    params = SamplingParams(max_tokens=generated or 1, ignore_eos=generated is None)
    return _run(config, pieces, folder, params, out, distributed=not in_process)


def _run(
    config: EngineConfig,
    pieces: "Callable[[], Iterator[Piece]]",
    folder: "ProfileFolder",
    params: "SamplingParams",
    out: Path,
    *,
    distributed: bool,
) -> int:
    from smoe.cli.terminal import working
    from smoe.core.errors import StartupError
    from smoe.engine.profile import run_pieces
    from smoe.llm import open_client

    with working("tokenising"):
        listed = [(piece.name, piece.label, len(piece.token_ids), piece.cut_tokens) for piece in pieces()]
    total, cut = sum(row[2] for row in listed), sum(row[3] for row in listed)
    if not listed:
        raise ConfigError("data", len(listed), "documents with at least one token")
    rest = f"; {cut:,} more are beyond the longest sequence and left out" if cut else ""
    print(f"{len(listed):,} sequences, {total:,} tokens{rest}", file=sys.stderr)
    kept = folder.kept()
    missing = {name for name, *_ in listed if name not in kept}
    if folder.resumed:
        print(f"{folder.path}: {len(listed) - len(missing):,} sequences are there already", file=sys.stderr)
    done = sum(row[2] for row in listed if row[0] in kept)
    with Progress("tokens", total) as progress:
        while missing:
            before = len(missing)

            def ended(piece: "Piece") -> None:
                nonlocal done
                done += len(piece.token_ids)
                progress.update(done)

            client = open_client(config, distributed=distributed)
            try:
                run_pieces(client, (piece for piece in pieces() if piece.name in missing), folder, params, ended)
            except BaseException:
                print(f"{folder.path}: what is done is kept there; the same command goes on", file=sys.stderr)
                raise
            finally:
                client.shutdown()
            kept = folder.kept()
            missing = {name for name in missing if name not in kept}
            done = sum(row[2] for row in listed if row[0] in kept)
            if len(missing) == before:
                raise StartupError(f"{folder.path}: no routes came back of {before} sequences")
    for name, error in kept.failed.items():
        print(f"error: sequence {name} is left out: {error}", file=sys.stderr)
    present = [(name, label) for name, label, *_ in listed if name in kept.places]
    if not present:
        raise ConfigError("data", f"{len(listed)} sequences", "at least one without a numeric error")
    places = [kept.places[name] for name, _ in present]
    folder.finish(places, tuple(label for _, label in present))
    print(f"{out}: {len(present)} sequences, {sum(place.rows for place in places)} tokens")
    return 1 if kept.failed else 0


def _encoder(checked: "Preflight", model: str) -> "Callable[[str], list[int]]":
    if checked.tokenizer is None:
        raise ConfigError("model", model, "a folder with a tokenizer")
    return checked.tokenizer.encode


def _digest(path: Path) -> str:
    return f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()[:16]}"


def _share(text: str | None) -> float:
    share = number("sample", text)
    if share is None:
        return 1.0
    if not 0.0 < share <= 1.0:
        raise ConfigError("sample", share, "above 0 up to 1")
    return share


def _seed(text: str | None, sample: str | None) -> int:
    value = integer("seed", text)
    if value is not None and value < 0:
        raise ConfigError("seed", value, "integer >= 0")
    if value is not None and sample is None:
        raise no_effect("seed", value, "--sample")
    return value or 0


def _positive(name: str, text: str | None) -> int | None:
    value = integer(name, text)
    if value is not None and value < 1:
        raise ConfigError(name, value, "integer >= 1")
    return value
