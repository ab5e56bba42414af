"""Methods in turn on the same prompts at the same memory: neighbours in time are paired."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass

from smoe.bench.result import Figure
from smoe.bench.speculation import methods
from smoe.bench.speculation.measure import Engine, Run
from smoe.bench.speculation.methods import Method
from smoe.bench.speculation.report import draft_figures, ratio_figure, same_answers
from smoe.bench.speculation.setting import Prompt, Prompts, Setting, plain
from smoe.engine.draft.measure_depth import DepthResult, measure_depths


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """At one size of memory: of each method its runs, by set, and the slots a layer that it had."""

    percent: int
    prompts: Prompts
    methods: dict[str, Method]
    runs: dict[str, dict[str, list[Run]]]
    slots: dict[str, int]

    def where(self) -> str:
        return f"{self.percent} % memory"


def measure(
    setting: Setting, compared: Sequence[Method], percent: int, prompts: Prompts, tokens: int, tier: str = "disk"
) -> Measured:
    """The first of a set's prompts by every method, then the second in the other order, and so on."""
    setting.note(f"{percent} % ({tier}): loading {len(compared)} engines")
    found: dict[str, dict[str, list[Run]]] = {each.name: {key: [] for key in prompts} for each in compared}
    with ExitStack() as stack:
        engines: dict[str, Engine] = {}
        for each in compared:
            engines[each.name] = stack.enter_context(closing(setting.engine(each, percent, tier)))
            engines[each.name].warm(next(iter(prompts.values()))[0])
        slots = {name: engine.bank.slots_a_layer for name, engine in engines.items()}
        for key, texts in prompts.items():
            setting.note(f"{percent} % ({tier}): {key}")
            for number, prompt in enumerate(texts):
                turn = list(engines.items())
                for name, engine in turn if number % 2 == 0 else turn[::-1]:
                    found[name][key].append(engine.run([prompt], tokens))
    setting.keep(f"{percent} %, {tier}, {', '.join(found)}", plain(found))
    return Measured(percent=percent, prompts=prompts, methods={m.name: m for m in compared}, runs=found, slots=slots)


def choose_depth(setting: Setting, percent: int, *, residual: bool) -> int:
    """Of least mean time a token on one prompt, by the same measure as `smoe profile depth`."""
    depths = setting.size.depths
    if len(depths) == 1:
        return depths[0]
    method = methods.adaptive(max(depths), residual=residual)
    setting.note(f"{percent} %: how far, {method.name}")
    assert method.draft is not None
    budget = setting.all_bytes * percent // 100
    config = method.config(setting.folder, budget, setting.own_bytes, tier="disk", seqs=1)
    prompts: list[Prompt] = list(next(iter(setting.prompts(1).values())))
    found = measure_depths(config, method.draft, prompts, repeats=1, tokens=setting.size.tokens, depths=depths)
    best = min(found, key=lambda result: result.mean_ms)
    setting.keep(f"{percent} %, depths, {method.name}", [asdict(result) for result in found])
    setting.add(_depth_figure(percent, method, best, found))
    return best.depth


def _depth_figure(percent: int, method: Method, best: DepthResult, found: Sequence[DepthResult]) -> Figure:
    listed = ", ".join(f"{result.depth}: {result.mean_ms:.0f} ms" for result in found)
    name = f"{percent} % memory, {method.name}: K of least time a token"
    return Figure(figure=name, value=best.depth, unit="tokens", bound=listed)


def compare(setting: Setting, percent: int, repeats: int) -> Measured:
    """Drafts with and without residuals against demand paging and fixed checkpoints, which draft as far as the one
    without residuals."""
    plain_depth, depth = (choose_depth(setting, percent, residual=each) for each in (False, True))
    base, fixed = methods.DEMAND, methods.fixed(plain_depth)
    draft, best = methods.adaptive(plain_depth), methods.adaptive(depth, residual=True)
    found = measure(setting, [base, fixed, draft, best], percent, setting.prompts(repeats), setting.size.tokens)
    for one in (best, draft):
        for other in (fixed, base):
            setting.add(ratio(found, one, other, goal=True))
    setting.add(ratio(found, best, draft), ratio(found, fixed, base))
    for one in (best, draft):
        setting.add(*draft_figures(f"{found.where()}, {one.name}", found.runs[one.name], one.depth))
    setting.add(same_figure(found.where(), found.runs, base.name))
    return found


def compare_small(setting: Setting) -> Measured:
    """Where an INT4 copy does not fit: what needs no memory for a draft, and a bound on any draft."""
    others = [methods.LOOKAHEAD, methods.lookup(2), methods.lookup(4), methods.original(8)]
    size = setting.size
    found = measure(setting, [methods.DEMAND, *others], size.small, setting.prompts(1), size.small_tokens)
    setting.add(*(ratio(found, other, methods.DEMAND) for other in others))
    best = min(found.runs, key=lambda name: _mean_s(found, name) if name != others[-1].name else float("inf"))
    gain = _mean_s(found, methods.DEMAND.name) / _mean_s(found, best)
    setting.add(Figure(figure=f"{found.where()}: what works best, over demand LRU", value=gain, unit="x", bound=best))
    return found


def compare_in_memory(setting: Setting, depth: int) -> Measured:
    """Experts without a slot are in host memory: the link is several times the disk's, and computing is the bound."""
    percent = max(setting.size.percents)
    prompts = dict(list(setting.prompts(1).items())[: setting.size.variations])
    draft = methods.adaptive(depth)
    found = measure(setting, [methods.DEMAND, draft], percent, prompts, setting.size.tokens, tier="host")
    where = f"{percent} % slots, the rest in host memory"
    base = methods.DEMAND.name
    setting.add(ratio_figure(where, found.runs[draft.name], found.runs[base], draft.name, base, goal=False))
    return found


def ratio(found: Measured, one: Method, base: Method, *, goal: bool = False) -> Figure:
    return ratio_figure(found.where(), found.runs[one.name], found.runs[base.name], one.name, base.name, goal=goal)


def same_figure(where: str, runs: Mapping[str, Mapping[str, Sequence[Run]]], base: str) -> Figure:
    equal = all(same_answers(each, runs[base]) for each in runs.values())
    return Figure(figure=f"{where}: all gave the same tokens", value=float(equal), unit="", goal="1", met=equal)


def _mean_s(found: Measured, name: str) -> float:
    every = [run.tpot_s for runs in found.runs[name].values() for run in runs]
    return sum(every) / len(every)
