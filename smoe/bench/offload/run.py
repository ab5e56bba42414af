"""`smoe bench offload`: decoding a model that does not fit, on this machine's disk."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from smoe.bench.decode.bound import inflated_folder
from smoe.bench.offload import peers
from smoe.bench.offload.link import Link
from smoe.bench.offload.measure import Capacity, measure
from smoe.bench.offload.peers import Peer, Setting
from smoe.bench.offload.plot import Curve, plot
from smoe.bench.offload.predict import curve, prediction_figures
from smoe.bench.offload.process import ContenderError, Process, one_line
from smoe.bench.offload.report import GOAL_PERCENT, capacity_figures, sample_rows
from smoe.bench.quality.texts import DOMAINS, heldout_tokens, windows
from smoe.bench.result import Figure, Result
from smoe.core.errors import CheckpointError, ConfigError
from smoe.engine.tokenizer import load_tokenizer
from smoe.models.loading import open_checkpoint
from smoe.offload.policies.spec import PolicySpec, parse_policies

DEMAND = "evict=lru"
CHOSEN = "evict=lru,prefetch=gate:width=2"
LIMIT_BYTES = 1_500_000_000
PROMPT_TOKENS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    percents: tuple[float, ...]
    tokens: int
    cold_repeats: int
    repeats: int
    peer_tokens: int
    peer_prompts: int


FULL = Size(percents=(5, 10, 25, 50, 75, 100), tokens=24, cold_repeats=2, repeats=4, peer_tokens=6, peer_prompts=2)
QUICK = Size(percents=(10, 25, 50), tokens=16, cold_repeats=1, repeats=2, peer_tokens=4, peer_prompts=1)


def run(*, quick: bool, cache: Path, out: Path, policies: str = CHOSEN, with_peers: bool = True) -> Result:
    """Takes some ten minutes on an idle machine, `quick` three.

    `cache` keeps the inflated model (4.9 GB) and the peers' copies of it (10 GB); pictures go to `out`, and so does the
    result after each part of it. A part that fails is a row that says why. Raises ConfigError for policies that do not
    parse, or that are demand LRU itself.
    """
    spec, size = parse_policies(policies), QUICK if quick else FULL
    spec.check_live()
    if spec == parse_policies(DEMAND):
        raise ConfigError("policies", policies, f"other than {DEMAND}, which it is compared with")
    folder = inflated_folder(cache)
    prompts = _prompts(folder, max(size.repeats, size.peer_prompts))
    result = Result(name="offload-quick" if quick else "offload", config=_config(size, policies))
    names = {DEMAND: parse_policies(DEMAND), policies: spec}
    files = sorted(folder.glob("*.safetensors"))
    expert_bytes, expert_share = _sizes(folder)
    link = Link(files, expert_bytes, repeats=2 if quick else 5)
    result.samples["link_bytes_per_s"] = {f"{threads} threads": rates for threads, rates in link.rates.items()}
    result.add(Figure(figure="plain direct reads", value=link.typical / 1e9, unit="GB/s", bound=_spread(link)))
    measured: list[Capacity] = []
    for percent, outcome in _measure(folder, names, link, prompts, size):
        if isinstance(outcome, Capacity):
            measured.append(outcome)
            for figure in capacity_figures(outcome, DEMAND, policies, lossy=spec.lossy):
                result.add(figure)
            result.samples["capacities"] = sample_rows(measured)
        else:
            result.add(Figure(figure=f"{percent:g} %", value=None, unit="", goal="measured", met=False, bound=outcome))
        result.write(out)
        print(f"{percent:g} % resident: {'measured' if isinstance(outcome, Capacity) else outcome}", flush=True)
    predicted: dict[str, Curve] = {
        name: curve(measured, each, expert_bytes, expert_share) for name, each in names.items()
    }
    for figure in prediction_figures(measured, predicted):
        result.add(figure)
    result.samples["predicted_tokens_per_s"] = predicted
    if measured:
        plot(measured, predicted, out / f"{result.name}.png")
    if with_peers:
        for figure in _peers(folder, cache, prompts, size, result, out):
            result.add(figure)
    return result


def _measure(
    folder: Path, names: dict[str, PolicySpec], link: Link, prompts: list[tuple[int, ...]], size: Size
) -> Iterator[tuple[float, Capacity | str]]:
    """(percent, what was measured, or in one line why it was not) as they come."""
    with _own(folder, "all", None) as resident:
        resident.ask({"op": "open"})
        for percent in size.percents:
            try:
                yield percent, _measure_at(percent, folder, names, resident, link, prompts, size)
            except (ContenderError, OSError) as error:
                yield percent, one_line(error)


def _measure_at(
    percent: float,
    folder: Path,
    names: dict[str, PolicySpec],
    resident: Process,
    link: Link,
    prompts: list[tuple[int, ...]],
    size: Size,
) -> Capacity:
    with ExitStack() as stack:
        contenders = {n: stack.enter_context(_own(folder, f"{percent:g}%", n)) for n in names}
        return measure(
            percent,
            contenders,
            resident,
            link.rate,
            prompts,
            tokens=size.tokens,
            cold_repeats=size.cold_repeats,
            repeats=size.repeats,
        )


def _peers(
    folder: Path, cache: Path, prompts: list[tuple[int, ...]], size: Size, result: Result, out: Path
) -> list[Figure]:
    """The result is written after each, with what was measured so far."""
    setting = Setting(
        folder=folder,
        scratch=cache / "peers",
        limit_bytes=LIMIT_BYTES,
        prompts=prompts[: size.peer_prompts],
        tokens=size.peer_tokens,
        threads=torch.get_num_threads(),
    )
    own, accelerate, llama = Peer(), Peer(), Peer()
    config = own_config(folder, f"{GOAL_PERCENT}%", DEMAND)
    named = {"transformers + accelerate disk offload": accelerate, "llama.cpp, memory-mapped": llama}
    everyone = {peers.OWN: own, **named}
    for peer, turn in (
        (own, partial(peers.run_own, config=config)),
        (accelerate, peers.run_accelerate),
        (llama, peers.run_llama),
        (own, partial(peers.run_own, config=config)),
    ):
        peers.take_turn(setting, peer, turn)
        result.samples["peers"] = {name: each.to_json() for name, each in everyone.items()}
        result.write(out)
    return peers.figures(own, named, LIMIT_BYTES, GOAL_PERCENT)


def own_config(folder: Path, memory: str, policies: str | None) -> dict[str, Any]:
    """Fields of EngineConfig; `policies` None is a resident engine."""
    config = {"model": str(folder), "expert_memory": memory, "max_num_seqs": 1, "max_num_batched_tokens": 64}
    return config if policies is None else {**config, "expert_policy": policies}


@contextmanager
def _own(folder: Path, memory: str, policies: str | None) -> Iterator[Process]:
    with Process("smoe.bench.offload.own", [json.dumps(own_config(folder, memory, policies))]) as process:
        yield process


def _prompts(folder: Path, count: int) -> list[tuple[int, ...]]:
    """Held-out text, one domain after the other."""
    tokenizer = load_tokenizer(folder)
    if tokenizer is None:
        raise CheckpointError(f"{folder}: no tokenizer")
    tokens = heldout_tokens(tokenizer.encode)
    each = -(-count // len(DOMAINS))
    by_domain = [windows(tokens[domain], each, PROMPT_TOKENS) for domain in DOMAINS]
    return [by_domain[i % len(DOMAINS)][i // len(DOMAINS)] for i in range(count)]


def _sizes(folder: Path) -> tuple[int, float]:
    """Bytes of one expert, and the experts' share of the bytes that a decode step of the resident model reads."""
    checkpoint = open_checkpoint(str(folder))
    spec = checkpoint.spec
    layer = spec.moe_layers[0]
    expert_bytes = checkpoint.expert_source(layer, 0).assembled_nbytes(torch.bfloat16)
    experts = len(spec.moe_layers) * spec.moe(layer).router.top_k * expert_bytes
    embedding = spec.vocab * spec.hidden * 2
    return expert_bytes, experts / (experts + checkpoint.params_nbytes(dtype=torch.bfloat16) - embedding)


def _config(size: Size, policies: str) -> dict[str, object]:
    return {
        "model": "builtin inflated, bf16",
        "demand": DEMAND,
        "chosen": policies,
        "batch": 1,
        "prompt_tokens": PROMPT_TOKENS,
        "decode_tokens": size.tokens,
        "repeats": size.repeats,
        "cold_repeats": size.cold_repeats,
        "capacities_percent": size.percents,
        "peer_memory_limit_bytes": LIMIT_BYTES,
        "seed": 0,
    }


def _spread(link: Link) -> str:
    rates = link.rates[link.threads]
    return f"{link.threads} threads, spread {min(rates) / 1e9:.2f}..{max(rates) / 1e9:.2f}"
