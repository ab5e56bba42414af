"""What each part of a draft is worth, on one engine from the same experts: one part less at a time, other timings, KV
copied, mistaken routes, depth chosen online."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from statistics import mean

import numpy as np

from smoe.bench.result import Figure
from smoe.bench.speculation import methods
from smoe.bench.speculation.compare import same_figure
from smoe.bench.speculation.measure import Engine, Run
from smoe.bench.speculation.methods import Method
from smoe.bench.speculation.report import ratio_figure, tpot_ms
from smoe.bench.speculation.setting import DTYPE, Prompts, Setting, plain
from smoe.bench.speculation.variation import Switch, Variation
from smoe.core.draft import TIMINGS
from smoe.offload.draft_memory import draft_nbytes

Runs = dict[str, list[Run]]
WHOLE = Variation(name="whole")
NO_PIO = Variation(name="without prefetch (PIO)", timing="none")
NO_SEE = replace(NO_PIO, name="also hits after misses (SEE)", hits_first=False)
NO_SIC = "also nothing shared (SIC)"
COPIED = Variation(name="KV copied", copied_kv=True)
ONLINE = Variation(name="depth online", online=True)
OTHERS = tuple(
    Variation(name=f"prefetch {timing}", timing=timing) for timing in TIMINGS if timing not in ("adaptive", "none")
)


@dataclass(frozen=True, slots=True)
class _Contender:
    engine: Engine
    switch: Switch
    variation: Variation


def take_apart(setting: Setting, percent: int, shared: Method) -> None:
    """Variations of `shared`, an INT4 draft."""
    depth = shared.depth
    prompts = dict(list(setting.prompts(1).items())[-setting.size.variations :])
    setting.note(f"{percent} %: parts of a draft")
    apart = replace(shared, unshared=True)
    noisy = [Variation(name=f"{100 * noise:.0f} % of routes random", noise=noise) for noise in setting.size.noises]
    with ExitStack() as stack:
        engines = [stack.enter_context(closing(setting.engine(each, percent))) for each in (shared, apart)]
        for engine in engines:
            engine.warm(next(iter(prompts.values()))[0])
        own, other = (Switch(setting, engine, depth) for engine in engines)
        contenders = {
            each.name: _Contender(engines[0], own, each) for each in (WHOLE, NO_PIO, *OTHERS, COPIED, ONLINE, *noisy)
        }
        contenders[NO_SIC] = _Contender(engines[1], other, NO_PIO)
        contenders[NO_SEE.name] = _Contender(engines[1], other, NO_SEE)
        found = _in_turn(setting, contenders, prompts)
        copied = own.copied_bytes
    setting.keep(f"parts, {percent} %", plain(found))
    where = f"{percent} % memory, K = {depth}"
    setting.add(
        *(_cumulative(where, found, name) for name in (WHOLE.name, NO_PIO.name, NO_SIC, NO_SEE.name)),
        *(_timing(where, found, name, each) for name, each in _by_timing()),
        _copied(where, found, copied),
        _memory(setting, depth),
        *_accuracy(where, found, dict(zip(setting.size.noises, (each.name for each in noisy), strict=True))),
        ratio_figure(where, found[ONLINE.name], found[WHOLE.name], "depth online", "fixed", goal=False),
        same_figure(f"{where}, parts", found, WHOLE.name),
    )


def _in_turn(setting: Setting, contenders: Mapping[str, _Contender], prompts: Prompts) -> dict[str, Runs]:
    found: dict[str, Runs] = {name: {key: [] for key in prompts} for name in contenders}
    names = list(contenders)
    for number, (key, texts) in enumerate(prompts.items()):
        setting.note(f"parts: {key}")
        start = number * len(names) // 2
        for name in (*names[start:], *names[:start]):
            each = contenders[name]
            each.switch.use(each.variation, seed=number)
            each.engine.restore()
            found[name][key].append(each.engine.run([texts[0]], setting.size.tokens))
        contenders[WHOLE.name].switch.use(WHOLE)
    return found


def _by_timing() -> Sequence[tuple[str, str]]:
    timings = {"adaptive": WHOLE.name, "none": NO_PIO.name} | {each.timing: each.name for each in OTHERS}
    return [(timings[timing], timing) for timing in TIMINGS]


def _cumulative(where: str, found: Mapping[str, Runs], name: str) -> Figure:
    value, whole = tpot_ms(found[name]), tpot_ms(found[WHOLE.name])
    bound = f"{value / whole:.2f} of the whole's time"
    return Figure(figure=f"{where}, ablation: {name}", value=value, unit="ms a token", bound=bound)


def _timing(where: str, found: Mapping[str, Runs], name: str, timing: str) -> Figure:
    runs = [run for each in found[name].values() for run in each]
    hits, hidden = 100 * mean(r.hit_rate for r in runs), 100 * mean(r.hidden_share for r in runs)
    bound = f"{hits:.0f} % resident when asked for, {hidden:.0f} % of transfer time hidden"
    return Figure(figure=f"{where}, prefetch {timing}", value=tpot_ms(found[name]), unit="ms a token", bound=bound)


def _copied(where: str, found: Mapping[str, Runs], copied: int) -> Figure:
    runs = [run for each in found[COPIED.name].values() for run in each]
    windows = max(1, sum(run.draft.windows for run in runs))
    value = tpot_ms(found[COPIED.name]) / tpot_ms(found[WHOLE.name])
    bound = f"{copied / windows / 1e3:.0f} kB copied a window"
    return Figure(figure=f"{where}: time a token with KV copied over KV shared", value=value, unit="x", bound=bound)


def _memory(setting: Setting, depth: int) -> Figure:
    shared = draft_nbytes(methods.self_draft(depth), setting.checkpoint, DTYPE)
    separate = shared + setting.own_bytes
    bound = f"{shared / 1e6:.0f} against {separate / 1e6:.0f} MB, weights beside the experts and KV rows being the rest"
    return Figure(
        figure="memory of a draft that shares over one that does not", value=shared / separate, unit="x", bound=bound
    )


def _accuracy(where: str, found: Mapping[str, Runs], noisy: Mapping[float, str]) -> list[Figure]:
    """Time a token over the share of told routes that are the draft's own."""
    times = {1.0: tpot_ms(found[WHOLE.name])} | {1 - noise: tpot_ms(found[name]) for noise, name in noisy.items()}
    figures = []
    for share, ms in times.items():
        name = WHOLE.name if share == 1.0 else noisy[1 - share]
        hits = mean(run.hit_rate for each in found[name].values() for run in each)
        bound = f"{100 * hits:.0f} % resident when asked for"
        figures.append(
            Figure(
                figure=f"{where}, {100 * share:.0f} % of told routes right", value=ms, unit="ms a token", bound=bound
            )
        )
    worst = min(times)
    slope = -float(np.polyfit([10 * share for share in times], list(times.values()), 1)[0])
    bound = f"{slope:.1f} ms a token for every 10 % fewer"
    name = f"{where}, {100 * worst:.0f} % of told routes right over all right"
    return [*figures, Figure(figure=name, value=times[worst] / times[1.0], unit="x", bound=bound)]
