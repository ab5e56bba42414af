"""Several sequences at once: time a token, and tokens a second of all."""

from contextlib import closing

from smoe.bench.result import Figure
from smoe.bench.speculation import methods
from smoe.bench.speculation.measure import Run
from smoe.bench.speculation.methods import Method
from smoe.bench.speculation.setting import Setting


def measure_batches(setting: Setting, percent: int, draft: Method) -> None:
    """`draft` against demand paging, at every size of batch."""
    size, base = setting.size, methods.DEMAND
    each = -(-max(size.batches) // size.sets)
    prompts = [prompt for texts in setting.prompts(each).values() for prompt in texts]
    found: dict[str, dict[int, Run]] = {}
    for method in (base, draft):
        setting.note(f"{percent} %, batches: {method.name}")
        with closing(setting.engine(method, percent, seqs=max(size.batches))) as engine:
            engine.warm(prompts[0])
            found[method.name] = {batch: engine.run(prompts[:batch], size.batch_tokens) for batch in size.batches}
    setting.keep(
        f"batches, {percent} %", {n: {str(b): r.plain() for b, r in runs.items()} for n, runs in found.items()}
    )
    for batch in size.batches:
        where = f"{percent} % memory, batch {batch}"
        plain, own = (found[name][batch] for name in (base.name, draft.name))
        for name, run in ((base.name, plain), (draft.name, own)):
            setting.add(
                Figure(figure=f"{where}, {name}: time a token", value=1e3 * run.tpot_s, unit="ms"),
                Figure(figure=f"{where}, {name}: throughput", value=batch / run.tpot_s, unit="tokens/s"),
            )
        bound = f"K = {draft.depth}" if own.answers == plain.answers else f"K = {draft.depth}; not all tokens the same"
        value = plain.tpot_s / own.tpot_s
        setting.add(Figure(figure=f"{where}: {draft.name} over {base.name}", value=value, unit="x", bound=bound))
