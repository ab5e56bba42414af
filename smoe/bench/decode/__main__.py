"""`make bench-decode`: every figure about decode speed on one machine, in one run."""

import argparse
import gc
import os
from pathlib import Path

import torch

from smoe.bench.decode import bound, builtin, growth, overhead
from smoe.bench.decode.peer import TransformersPeer
from smoe.bench.result import Result, print_figures
from smoe.core.config import EngineConfig
from smoe.engine.build import build_local_client

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench-decode", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer repeats and steps")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"), help="folder of the result file")
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "smoe"
    parser.add_argument("--cache", type=Path, default=cache, help="where the inflated model is kept (4.9 GB)")
    parser.add_argument("--skip-inflated", action="store_true", help="leave out the 4.9 GB model")
    args = parser.parse_args()
    repeats, steps = (2, 24) if args.quick else (5, 64)
    config = {"repeats": repeats, "steps": steps, "prompt_len": builtin.PROMPT_LEN, "batches": builtin.BATCHES}
    result = Result(name="decode-quick" if args.quick else "decode", config=config)
    for name, dtype in _DTYPES.items():
        peer = TransformersPeer(builtin.builtin_folder(), dtype)
        client = build_local_client(EngineConfig(dtype=name))  # type: ignore[arg-type]
        builtin.compare(client, peer, dtype=name, steps=steps, repeats=repeats, result=result)
        del peer
        growth.measure(client, dtype=name, repeats=repeats, result=result)
        client.shutdown()
    overhead.measure(repeats=repeats, result=result)
    if not args.skip_inflated:
        folder = bound.inflated_folder(args.cache)
        gc.collect()
        client = build_local_client(EngineConfig(model=str(folder), dtype="bfloat16", max_num_seqs=1))
        bound.measure(client, steps=steps, repeats=repeats, result=result)
        client.shutdown()
    print_figures(result.summary, "decode")
    print(result.write(args.out))


if __name__ == "__main__":
    main()
