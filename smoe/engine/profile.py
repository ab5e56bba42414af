"""Running token sequences through an engine that records their routes in parts."""

from collections.abc import Callable, Iterable

from smoe.core.client import EngineClient
from smoe.core.errors import StartupError, StoreError
from smoe.core.request import Delta, Request
from smoe.core.sampling import SamplingParams
from smoe.engine.profile_folder import ProfileFolder
from smoe.engine.profile_sequences import Piece

# Enough for full batches; what waits holds its token ids only.
_IN_FLIGHT = 64


def run_pieces(
    client: EngineClient,
    pieces: Iterable[Piece],
    folder: ProfileFolder,
    params: SamplingParams,
    ended: Callable[[Piece], None],
) -> None:
    """Runs all pieces and notes in the folder how each ended; their routes are on disk for sure only after the client
    has shut down.

    Raises RequestError for a piece that cannot run, StoreError or StartupError when experts or the engine are lost.
    """
    running: dict[str, Piece] = {}

    def collect() -> None:
        deltas = client.poll()
        if not deltas:
            raise StartupError("the engine ended with requests in flight")
        for delta in deltas:
            if delta.finish_reason is not None:
                _note(delta, folder)
                ended(running.pop(delta.request_id))

    for piece in pieces:
        client.submit([Request(request_id=piece.name, prompt_token_ids=piece.token_ids, params=params)])
        running[piece.name] = piece
        while len(running) >= _IN_FLIGHT:
            collect()
    while running:
        collect()


def _note(delta: Delta, folder: ProfileFolder) -> None:
    if delta.finish_reason == "numeric_error":
        folder.note_failed(delta.request_id, str(delta.error))
    elif delta.finish_reason == "error":
        kind = StoreError if str(delta.error).startswith("store") else StartupError
        raise kind(f"sequence {delta.request_id}: {delta.error}")
    elif delta.usage is not None and delta.finish_reason != "abort":
        # The last token was sampled and never went in.
        folder.note_ended(delta.request_id, delta.usage.total_tokens - 1)
