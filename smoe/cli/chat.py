"""`smoe chat`: a conversation at the terminal."""

import sys
from collections.abc import Iterator
from typing import TextIO

import typer

from smoe.cli import options
from smoe.cli.conversation import Continuation, Conversation, Messages
from smoe.cli.deployment import print_resolved, resolve
from smoe.cli.engine_options import DRAFT, EXPERTS, PARALLEL, takes
from smoe.cli.sampling import sampling_params
from smoe.cli.values import utf8
from smoe.core.client import EngineClient
from smoe.core.errors import ConfigError, RequestError, SmoeError
from smoe.core.request import Request
from smoe.core.sampling import SamplingParams

NAME = "chat"
EXAMPLE = options.example("smoe chat --model builtin --max-tokens 64")

_HELP = (
    "/reset forgets the conversation, /memory SIZE sets what experts may take, /placement DIR moves them between "
    "devices, /exit or end of input leaves"
)


@takes(
    "model", "dtype", *EXPERTS, "expert_memory_max", *DRAFT, "max_model_len", "threads", *PARALLEL, before="in_process"
)
def command(
    ctx: typer.Context,
    config: options.ConfigFile = None,
    max_tokens: options.MaxTokens = "128",
    temperature: options.Temperature = None,
    top_p: options.TopP = None,
    top_k: options.TopK = None,
    seed: options.Seed = None,
    stop: options.Stop = None,
    in_process: options.InProcess = False,
    print_config: options.PrintConfig = False,
) -> int:
    """Talk to a model, a line at a time. /reset forgets the conversation, /memory SIZE sets what experts may take
    (up to --expert-memory-max), /placement DIR moves them between devices, /exit leaves."""
    params = sampling_params(
        max_tokens=max_tokens, temperature=temperature, top_p=top_p, top_k=top_k, seed=seed, stop=stop
    )
    deployment = resolve(ctx, config, in_process=in_process)
    if print_config:
        return print_resolved(deployment)
    engine = deployment.engine_config()
    from smoe.cli import preflight
    from smoe.cli.terminal import reserved_stdout, working
    from smoe.llm import open_client

    tokenizer = preflight.check(engine).tokenizer
    if tokenizer is None:
        raise ConfigError("model", engine.model, "a folder with a tokenizer")
    with reserved_stdout() as out:
        with working("loading" if in_process else "starting Ray and loading"):
            client = open_client(engine, distributed=not in_process, cluster=None if in_process else deployment.cluster)
        try:
            conversation = Messages(client) if tokenizer.has_chat_template else Continuation(client)
            print(f"{conversation.about}; {_HELP}", file=sys.stderr)
            _talk(client, conversation, params, out)
        finally:
            client.shutdown()
    return 0


def _talk(client: EngineClient, conversation: Conversation, params: SamplingParams, out: TextIO) -> None:
    for number, line in enumerate(_lines()):
        try:
            said = utf8("input", line).strip("\r\n")
            if said == "/exit":
                return
            if said == "/reset":
                conversation.reset()
            elif said.startswith("/memory "):
                slots = client.resize_experts(said.removeprefix("/memory ").strip())
                print(f"{slots} experts fit, over all layers", file=sys.stderr)
            elif said.startswith("/placement "):
                moved = client.apply_placement(said.removeprefix("/placement ").strip())
                print(f"{moved.experts} experts moved, {moved.nbytes:,} bytes", file=sys.stderr)
            elif said.startswith("/"):
                raise RequestError("command", said, _HELP)
            elif said:
                prompt = tuple(conversation.prompt(said))
                request = Request(request_id=f"turn-{number}", prompt_token_ids=prompt, params=params)
                conversation.take(said, _answer(client, request, out))
        except SmoeError as error:
            print(f"error: {' '.join(str(error).split())}", file=sys.stderr)


def _lines() -> Iterator[bytes]:
    """Lines of stdin as bytes, so that one that is not UTF-8 costs only itself; with editing on a terminal."""
    if not sys.stdin.isatty():
        yield from iter(sys.stdin.buffer.readline, b"")
        return
    import readline  # noqa: F401

    while True:
        try:
            # `input` edits lines only when it writes to the real stdout.
            sys.stdout, kept = sys.__stdout__, sys.stdout
            try:
                line = input("> ")
            finally:
                sys.stdout = kept
        except EOFError:
            return
        yield line.encode("utf-8", "surrogateescape")


def _answer(client: EngineClient, request: Request, out: TextIO) -> str:
    """Streams one answer; Ctrl-C ends it early. Raises RequestError when it cannot run or ends in an error."""
    client.submit([request])
    pieces: list[str] = []
    while True:
        try:
            deltas = client.poll()
        except KeyboardInterrupt:
            client.abort([request.request_id])
            deltas = client.poll()
        for delta in deltas:
            if delta.request_id != request.request_id:
                continue
            out.write(delta.text)
            out.flush()
            pieces.append(delta.text)
            if delta.finish_reason is not None:
                print(file=out, flush=True)
                if delta.error is not None:
                    raise RequestError("answer", delta.finish_reason, delta.error)
                return "".join(pieces)
