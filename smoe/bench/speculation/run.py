"""`smoe bench speculation`: drafts against waiting for experts, at equal memory, on this machine's disk."""

from dataclasses import asdict
from pathlib import Path

from smoe.bench.decode.bound import inflated_folder
from smoe.bench.result import Result
from smoe.bench.speculation import methods
from smoe.bench.speculation.batches import measure_batches
from smoe.bench.speculation.compare import Measured, compare, compare_in_memory, compare_small
from smoe.bench.speculation.parts import take_apart
from smoe.bench.speculation.plot import plot
from smoe.bench.speculation.predict import predict, predict_accuracy
from smoe.bench.speculation.reading import read_along
from smoe.bench.speculation.report import tpot_ms
from smoe.bench.speculation.setting import Setting
from smoe.bench.speculation.sides import measure_sides
from smoe.bench.speculation.size import FULL, QUICK

MODEL = "builtin inflated to hidden 2048, expert ffn 1024, bfloat16"


def run(*, quick: bool, cache: Path, out: Path) -> Result:
    """Takes up to half an hour on an idle machine, `quick` up to five minutes. `cache` keeps the inflated model (4.9
    GB). After each part `out` holds what has been found so far."""
    size = QUICK if quick else FULL
    name = "speculation-quick" if quick else "speculation"
    config = {"model": MODEL, **asdict(size), "expected_s": size.expected_s()}
    setting = Setting(size, inflated_folder(cache), Result(name=name, config=config), out)
    unions = read_along(setting)
    setting.save()
    measured: list[Measured] = []
    top_k = setting.spec.moe(setting.spec.moe_layers[0]).router.top_k

    def note(found: Measured) -> None:
        predict(setting, found, methods.DEMAND.name)
        measured.append(found)
        plot(measured, unions, out / f"{name}.png", num_experts=setting.num_experts, top_k=top_k)
        setting.save()

    for percent, repeats in zip(size.percents, size.repeats, strict=True):
        note(compare(setting, percent, repeats))
    note(compare_small(setting))
    first = measured[0]
    drafts = [each for each in first.methods.values() if each.draft is not None and not each.unshared]
    best = min(drafts, key=lambda each: tpot_ms(first.runs[each.name]))
    setting.add(*predict_accuracy(setting, first, methods.DEMAND.name, best))
    take_apart(setting, first.percent, best)
    setting.save()
    compare_in_memory(setting, best.depth)
    measure_batches(setting, first.percent, methods.shorter(best, size.batch_tokens - 2))
    setting.save()
    measure_sides(setting)
    setting.save()
    return setting.result
