"""`smoe bench decode`: every figure about decode speed on one machine, in one run."""

import gc
from collections.abc import Callable
from pathlib import Path

import torch

from smoe.bench.decode import bound, builtin, growth, overhead
from smoe.bench.decode.peer import TransformersPeer
from smoe.bench.result import Result
from smoe.core.client import EngineClient
from smoe.core.config import DType, EngineConfig
from smoe.models.loading import model_folder

DTYPES: dict[DType, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}
OpenClient = Callable[[EngineConfig, bool], EngineClient]
"""From a configuration and whether to use actors, an engine."""


def run(open_client: OpenClient, *, quick: bool, cache: Path | None) -> Result:
    """Takes about a quarter of an hour, `quick` some minutes. `cache` keeps the inflated model of 4.9 GB; None leaves
    its figures out."""
    repeats, steps = (2, 24) if quick else (5, 64)
    config: dict[str, object] = {"repeats": repeats, "steps": steps, "seed": 0}
    config |= {"prompt_len": builtin.PROMPT_LEN, "batches": builtin.BATCHES}
    result = Result(name="decode-quick" if quick else "decode", config=config)
    for name, dtype in DTYPES.items():
        peer = TransformersPeer(model_folder("builtin"), dtype)
        client = open_client(EngineConfig(dtype=name), False)
        builtin.compare(client, peer, dtype=name, steps=steps, repeats=repeats, result=result)
        del peer
        growth.measure(client, dtype=name, repeats=repeats, result=result)
        client.shutdown()
    overhead.measure_step(repeats=repeats, result=result)
    _measure_actors(open_client, steps=steps, repeats=repeats, result=result)
    if cache is not None:
        folder = bound.inflated_folder(cache)
        gc.collect()
        client = open_client(EngineConfig(model=str(folder), dtype="bfloat16", max_num_seqs=1), False)
        bound.measure(client, steps=steps, repeats=repeats, result=result)
        client.shutdown()
    return result


def _measure_actors(open_client: OpenClient, *, steps: int, repeats: int, result: Result) -> None:
    clients = [open_client(EngineConfig(), distributed) for distributed in (False, True)]
    try:
        overhead.measure_actors(*clients, steps=steps, repeats=repeats, result=result)
    finally:
        for client in clients:
            client.shutdown()
